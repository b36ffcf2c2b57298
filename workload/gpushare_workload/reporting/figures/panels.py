"""Small multiples: one panel for each load; a mode has the same line style in all panels."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Load
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.style import GRIDS, KINDS, LINE_STYLES, MODES, SETTINGS, SOFT, depth_text
from gpushare_workload.results.summary import Row

PANEL_INCHES = (3.35, 2.75)
HEAD_INCHES = 0.42
COLUMNS = 3
IDEAL: dict[str, Any] = {"color": SOFT, "linewidth": 1.2, "linestyle": ":"}
HOLLOW: dict[str, Any] = {"markerfacecolor": "none", "markersize": 9.0}


def loads(rows: Iterable[Row]) -> list[Load]:
    """The loads in the order of their first row."""
    return list(dict.fromkeys(row.case.load for row in rows))


def modes(rows: Iterable[Row]) -> list[SharingMode]:
    present = {row.case.mode for row in rows}
    return [mode for mode in SharingMode if mode in present]


@contextmanager
def styled() -> Iterator[None]:
    with mpl.rc_context(dict(SETTINGS)):
        yield


def grid(
    shown: Sequence[Load], legend: Sequence[SharingMode], ideal: str = "", hollow: str = "", depths: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each load and a legend of the modes, and of the dotted line and of hollow marks if
    `ideal` and `hollow` name them.

    `depths`: the titles of the panels name the depth.
    """
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    width, height = max(2, columns) * PANEL_INCHES[0], lines * PANEL_INCHES[1] + HEAD_INCHES
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, rect=(0, 0, 1, 1 - HEAD_INCHES / height))  # type: ignore[union-attr, call-arg]
    panels: list[Axes] = [figure.add_subplot(lines, columns, place + 1) for place in range(len(shown))]
    for panel, load in zip(panels, shown, strict=True):
        panel.set_title(f"{KINDS[load.kind]}, {GRIDS[load.grid]}" + (f", {depth_text(load)}" if depths else ""))
    handles = [*samples(legend), *([Line2D([], [], label=ideal, **IDEAL)] if ideal else [])]
    if hollow:
        handles.append(Line2D([], [], label=hollow, linestyle="", marker="o", color=SOFT, **HOLLOW))
    figure.legend(handles=handles, loc="upper left", ncols=len(handles), handlelength=2.4, columnspacing=1.5)
    return figure, panels


def samples(modes_: Iterable[SharingMode]) -> list[Artist]:
    """The samples of the modes for a legend."""
    return [Line2D([], [], label=MODES[mode], **LINE_STYLES[mode].line()) for mode in modes_]


def points(line: Sequence[tuple[float, Spread]]) -> tuple[list[float], list[float], list[list[float]]]:
    """(places, medians, bars from the least to the largest) of (place, spread), as `errorbar` takes them."""
    spreads = [spread for _, spread in line]
    bars = [[each.median - each.least for each in spreads], [each.largest - each.median for each in spreads]]
    return [place for place, _ in line], [each.median for each in spreads], bars
