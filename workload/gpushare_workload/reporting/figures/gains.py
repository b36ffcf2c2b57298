"""What MPS gains at each depth, against time slices and against one client alone: the first picture to look at."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import Load
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.figures.panels import styled
from gpushare_workload.reporting.selection import compared_clients, times, usual
from gpushare_workload.reporting.style import GRIDS, KINDS, LINE_STYLES, SOFT, TEXT, depth_text
from gpushare_workload.results.summary import Row

BAR, GAP, HEAD = 0.19, 0.24, 1.2
"""Inches: of a bar, between two kinds of grids, and of legend and axis."""
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)
AGAINST = (("against time slices", LINE_STYLES[SharingMode.MPS].colour), ("against one client alone", "#8fbcd9"))


def gains(rows: Sequence[Row]) -> Figure | None:
    """Two bars for each load; the logarithmic scale shows ratios as lengths. Like is compared with like: same depth."""
    shown = [row for row in usual(rows) if row.case.mode is SharingMode.MPS and _compared(row, rows)]
    shown = [row for row in shown if row.of_time_slicing is not None]
    if not shown:
        return None
    places, place = [], 0.0
    for number, row in enumerate(shown):
        place -= 2 * BAR + 0.06 + GAP * (number > 0 and _base(shown[number - 1]) != _base(row))
        places.append(place)
    with styled():
        figure = Figure(figsize=(9.0, HEAD - places[-1]), layout="constrained")
        panel = figure.add_subplot()
        for at, row in zip(places, shown, strict=True):
            for offset, ratio, (_, colour) in zip((BAR / 2, -BAR / 2), _ratios(row), AGAINST, strict=True):
                if ratio is not None:
                    _bar(panel, at + offset, ratio, colour)
        panel.set_yticks(places, [_name(row) for row in shown], color=TEXT)
        panel.set_ylim(places[-1] - 2 * BAR, places[0] + 2 * BAR)
        panel.axvline(1.0, color=SOFT, linewidth=1.2)
        panel.set_xscale("log")
        ends = [ratio for row in shown for ratio in _ratios(row) if ratio is not None]
        panel.set_xticks(TICKS)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlim(min(0.8, min(ratio.least for ratio in ends) * 0.9), max(ratio.largest for ratio in ends) * 1.7)
        panel.grid(visible=False, axis="y")
        counts = " or ".join(str(count) for count in sorted({row.case.clients for row in shown}))
        panel.set_xlabel(f"throughput of {counts} clients together under MPS, as a multiple; logarithmic")
        handles = [Patch(color=colour, label=text) for text, colour in AGAINST]
        figure.legend(handles=handles, loc="outside upper left", ncols=2, columnspacing=1.5)
        return figure


def _ratios(row: Row) -> tuple[Spread | None, Spread | None]:
    return row.of_time_slicing, row.of_one_client


def _compared(row: Row, rows: Sequence[Row]) -> bool:
    """One number of clients for each load."""
    return row.case.clients > 1 and row.case.clients == compared_clients(rows, row.case.load)


def _base(row: Row) -> Load:
    return Load(row.case.load.kind, row.case.load.grid)


def _name(row: Row) -> str:
    load = row.case.load
    return f"{KINDS[load.kind]}, {GRIDS[load.grid]}, {depth_text(load)}"


def _bar(panel: Any, place: float, gain: Spread, colour: str) -> None:
    panel.barh(place, gain.median - 1, left=1.0, height=0.9 * BAR, color=colour)
    panel.plot([gain.least, gain.largest], [place, place], color=TEXT, linewidth=1.0)
    end = max(1.0, gain.largest)
    panel.annotate(times(gain.median), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
