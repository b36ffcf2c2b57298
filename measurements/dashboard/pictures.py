"""Draws the panels of a run as one picture, from the data that Prometheus gave: to see what a reader of the dashboard
sees. Not Grafana's own drawing. Below each panel: minutes since the run began."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

from measurements.dashboard.panels import Line, Shown

COLUMNS = 3
LEGENDS_MOST = 6
DOTS_PER_INCH = 72
DAY = 86400.0
GAP_STEPS = 2.5
"""Points that are further apart than so many steps are not joined, as in Grafana."""
PALETTE = ("#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0", "#37872D", "#FADE2A")


def draw(panels: Sequence[Shown], start: float, end: float, step: float, file: Path) -> None:
    """`start`, `end`: Unix seconds, the ends of each panel's time. `step`: seconds between two points."""
    rows = -(-len(panels) // COLUMNS)
    figure, all_axes = plt.subplots(rows, COLUMNS, figsize=(COLUMNS * 5.2, rows * 2.6), squeeze=False)
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    for panel, axes in zip(panels, all_axes.flat, strict=False):
        _panel(panel, axes, start, step)
        axes.set_xlim(0, (end - start) / 60)
    figure.tight_layout()
    figure.savefig(file, dpi=DOTS_PER_INCH, metadata={"Software": None})
    plt.close(figure)


def _panel(panel: Shown, axes: Axes, start: float, step: float) -> None:
    axes.set_title(panel.title, fontsize="small", loc="left")
    for number, line in enumerate(panel.lines):
        color = PALETTE[number % len(PALETTE)]
        label = line.legend if number < LEGENDS_MOST else None
        for index, (minutes, values) in enumerate(_pieces(line, start, step)):
            marker = "." if len(values) == 1 else None
            axes.plot(minutes, values, color=color, linewidth=1, marker=marker, label=label if index == 0 else None)
    if panel.unit == "percentunit":
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    elif panel.unit == "bytes":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 2**30:.1f} GiB"))
    elif panel.unit == "s" and (panel.bounds or (0, 0))[1] > 2 * DAY:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / DAY:.0f} d"))
    elif panel.unit == "s":
        axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.set_ylim(0, (panel.bounds or (0.0, 0.0))[1] * 1.1 or 1)
    axes.grid(visible=True, alpha=0.2)
    axes.tick_params(labelsize="x-small")
    if any(line.legend for line in panel.lines):
        axes.legend(fontsize=5, loc="upper left", framealpha=0.6)


def _pieces(line: Line, start: float, step: float) -> list[tuple[list[float], list[float]]]:
    """(minutes, values) of each stretch without a gap."""
    pieces: list[tuple[list[float], list[float]]] = []
    last = None
    for at, value in line.points:
        if last is None or at - last > GAP_STEPS * step:
            pieces.append(([], []))
        pieces[-1][0].append((at - start) / 60)
        pieces[-1][1].append(value)
        last = at
    return pieces
