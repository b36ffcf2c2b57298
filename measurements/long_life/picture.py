"""measurements/results/faults/long-life.svg: what each part uses, over the hours that it lived."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpushare_workload.reporting.style import LINE, PROCESSES, SETTINGS, SOFT
from measurements.long_life.minutes import NODE, UNITS, Key
from measurements.long_life.samples import PARTS
from measurements.long_life.trend import Row

COLUMNS = ("memory", "file descriptors", "threads")
LAST = (
    ((NODE, "disk"), (NODE, "files")),
    ((NODE, "GpuNode"),),
    (("operator", "API writes"), ("webhook", "API writes"), ("agent", "API writes")),
)
WIDTH, ROW_HEIGHT = 12.0, 1.7


def draw(series: Mapping[Key, Sequence[Row]], boundaries: Sequence[float], file: Path) -> None:
    """`boundaries`: hours at which a stretch of the long life ended."""
    with rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(WIDTH, ROW_HEIGHT * (len(PARTS) + 1)), layout="constrained")
        panels = figure.subplots(len(PARTS) + 1, len(COLUMNS), sharex=True, squeeze=False)
        for row, part in enumerate(PARTS):
            for column, what in enumerate(COLUMNS):
                _panel(panels[row][column], series, [(part, what)], boundaries)
        for column, keys in enumerate(LAST):
            _panel(panels[-1][column], series, keys, boundaries)
            panels[-1][column].set_xlabel("hours")
        figure.savefig(file, metadata={"Date": None})


def _panel(axes: Axes, series: Mapping[Key, Sequence[Row]], keys: Sequence[Key], boundaries: Sequence[float]) -> None:
    for boundary in boundaries:
        axes.axvline(boundary, color=LINE, linewidth=0.8)
    highest = 0.0
    for number, key in enumerate(keys):
        label: str | None = key[1] if key[0] == NODE else key[0]
        for _, rows in groupby(series.get(key, ()), key=lambda row: row.life):
            for piece in _pieces(list(rows)):
                axes.plot(
                    [row.hour for row in piece],
                    [row.value for row in piece],
                    color=PROCESSES[number],
                    linewidth=0.9,
                    label=label,
                )
                label = None
                highest = max(highest, *(row.value for row in piece))
    part, what = keys[0]
    unit = f", {UNITS[what]}" if UNITS[what] else ""
    axes.set_title(f"{part}: {what}{unit}" if len(keys) == 1 else f"{what}{unit}", fontsize="small", loc="left")
    axes.set_ylim(0, highest * 1.15 or 1)
    axes.tick_params(labelsize="x-small", colors=SOFT)
    if len(keys) > 1:
        axes.legend(fontsize="x-small", loc="upper left")


def _pieces(rows: Sequence[Row]) -> list[list[Row]]:
    """Minutes that follow each other: between two parts of the life nothing is drawn."""
    pieces: list[list[Row]] = []
    for row in rows:
        if pieces and row.hour - pieces[-1][-1].hour < 5 / 60:
            pieces[-1].append(row)
        else:
            pieces.append([row])
    return pieces
