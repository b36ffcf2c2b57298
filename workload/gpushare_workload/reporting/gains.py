"""The plot of the gain of each sharing mode over time-slicing: the first plot to look at."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from gpushare_workload.bench.plan import SharingMode
from gpushare_workload.bench.results.statistics import Spread
from gpushare_workload.bench.results.summary import Row
from gpushare_workload.reporting.panels import loads, samples, styled
from gpushare_workload.reporting.selection import compared_clients, times, usual
from gpushare_workload.reporting.style import GRIDS, KINDS, LINE_STYLES, SOFT, TEXT

BAR, GAP, HEAD = 0.24, 0.26, 0.95
"""Inches: of a bar, between two loads, and of legend and axis."""
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def gains(rows: Sequence[Row]) -> Figure | None:
    """Throughput as a multiple of time-slicing with as many clients. The logarithmic scale shows ratios as lengths."""
    shown = [(row, row.of_time_slicing) for row in _compared(usual(rows)) if row.of_time_slicing is not None]
    if not shown:
        return None
    groups = loads(row for row, _ in shown)
    places = _places([row for row, _ in shown])
    with styled():
        figure = Figure(figsize=(9.0, HEAD - places[-1]), layout="constrained")
        panel = figure.add_subplot()
        for place, (row, gain) in zip(places, shown, strict=True):
            _bar(panel, place, row, gain)
        middles = {
            load: [it for it, (row, _) in zip(places, shown, strict=True) if row.case.load == load] for load in groups
        }
        names = [f"{KINDS[load.kind]}, {GRIDS[load.grid]}\n{compared_clients(rows, load)} clients" for load in groups]
        panel.set_yticks([sum(it) / len(it) for it in middles.values()], names, color=TEXT)
        panel.axvline(1.0, color=SOFT, linewidth=1.2)
        panel.set_xscale("log")
        ends = [gain for _, gain in shown]
        panel.set_xticks(TICKS)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlim(min(0.8, min(it.least for it in ends) * 0.9), max(it.largest for it in ends) * 1.7)
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("throughput of all clients together, as a multiple of time-slicing")
        modes = [mode for mode in SharingMode if any(row.case.mode is mode for row, _ in shown)]
        figure.legend(handles=samples(modes, bars=True), loc="outside upper left", ncols=len(modes), columnspacing=1.5)
        return figure


def _compared(rows: Sequence[Row]) -> list[Row]:
    """One number of clients for each load."""
    return [row for row in rows if row.case.clients == compared_clients(rows, row.case.load)]


def _places(shown: Sequence[Row]) -> list[float]:
    """Positions from the top down, in inches, with a gap between two loads."""
    places, place = [], 0.0
    for number, row in enumerate(shown):
        another = number > 0 and shown[number - 1].case.load != row.case.load
        place -= BAR + GAP * another
        places.append(place)
    return places


def _bar(panel: Any, place: float, row: Row, gain: Spread) -> None:
    panel.barh(place, gain.median - 1, left=1.0, height=0.82 * BAR, color=LINE_STYLES[row.case.mode].colour)
    panel.plot([gain.least, gain.largest], [place, place], color=TEXT, linewidth=1.0)
    end = max(1.0, gain.largest)
    panel.annotate(times(gain.median), (end, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
