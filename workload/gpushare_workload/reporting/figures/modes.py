"""Modes against each other: throughput and fairness by the number of clients, latency, and memory."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator, PercentFormatter

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare.messages.wording import count_of
from gpushare_workload.backend.work import Load
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.figures.panels import IDEAL, grid, loads, modes, points, styled
from gpushare_workload.reporting.selection import PREFERRED_CLIENTS, compared_clients, usual
from gpushare_workload.reporting.style import LINE_STYLES, MODES, TEXT
from gpushare_workload.results.summary import Row

EVEN = 0.95
"""An index of fairness from which on a picture shows nothing; the table has it."""
LEAST_SPAN = 5.0
"""Smallest ratio of the ends of an axis of times."""


def throughput(rows: Sequence[Row]) -> Figure | None:
    """Kernels per second of all clients together, against their number; bars span the repeats."""
    rows = usual(rows)
    shown = _with_a_line(rows)
    if not shown:
        return None
    with styled():
        figure, panels = grid(shown, modes(rows), ideal="N × one client")
        for panel, load in zip(panels, shown, strict=True):
            here = [row for row in rows if row.case.load == load]
            _ideal(panel, here)
            _lines(panel, here, lambda row: row.total)
            panel.set_ylim(bottom=0, top=1.08 * max(row.total.largest for row in here))
            panel.yaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_ylabel("kernels per second")
        return figure


def _with_a_line(rows: Sequence[Row]) -> list[Load]:
    """Loads with the most numbers of clients, at least two: of the others the table tells."""
    counts = {load: len({row.case.clients for row in rows if row.case.load == load}) for load in loads(rows)}
    most = max(counts.values(), default=0)
    return [load for load, count in counts.items() if 1 < count == most]


def _ideal(panel: Axes, rows: Sequence[Row]) -> None:
    """The line of N clients that are each as fast as one alone."""
    alone = [row.total.median for row in rows if row.case.clients == 1 and row.case.mode is not SharingMode.STREAMS]
    if alone:
        most = max(row.case.clients for row in rows)
        panel.plot([1, most], [max(alone), max(alone) * most], zorder=1, **IDEAL)


def _lines(panel: Axes, rows: Sequence[Row], figure: Callable[[Row], Spread]) -> None:
    """One line for each mode: medians against the number of clients, with bars from the least to the largest."""
    for mode in modes(rows):
        line = [(row.case.clients, figure(row)) for row in rows if row.case.mode is mode]
        panel.errorbar(*points(line), capsize=2.5, elinewidth=1.0, **LINE_STYLES[mode].line())
    _axis_of_clients(panel, rows)


def _axis_of_clients(panel: Axes, rows: Sequence[Row]) -> None:
    counts = sorted({row.case.clients for row in rows})
    apart = [count for place, count in enumerate(counts) if not place or count - counts[place - 1] >= counts[-1] / 16]
    panel.set_xticks(apart, [str(count) for count in apart])
    panel.set_xlim(left=0, right=counts[-1] * 1.05)
    panel.set_xlabel("clients")


def latency(rows: Sequence[Row]) -> Figure | None:
    """The fraction of launches done within a time, from the launch to the end of the wait, with a mark at the p99.

    At depth 1 alone: in a deeper queue the time of a round says little of a launch.
    """
    rows = [row for row in usual(rows) if row.case.load.depth == 1]
    shown = loads(rows)
    if not shown:
        return None
    with styled():
        figure, panels = grid(shown, modes(rows))
        for panel, load in zip(panels, shown, strict=True):
            clients = compared_clients(rows, load)
            here = [row for row in rows if row.case.load == load and row.case.clients == clients]
            for row in here:
                look = LINE_STYLES[row.case.mode].line()
                steps = row.latency.distribution()
                places = [steps[0][0] / 1e9, *(nanoseconds / 1e9 for nanoseconds, _ in steps)]
                panel.step(places, [0.0, *(share for _, share in steps)], where="post", **{**look, "marker": ""})
                panel.plot([row.latency.percentile(99) / 1e9], [0.99], **{**look, "linestyle": ""}, zorder=4)
            panel.set_xscale("log")
            panel.tick_params(axis="x", pad=9)  # the first label is below that of 0%, not beside it
            _widened(panel)
            low, high = panel.get_xlim()
            panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0, 3.0)))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
            panel.set_ylim(0, 1.04)
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            panel.set_xlabel(f"launch to end of the wait, {clients} clients")
            panel.set_ylabel("launches done")
        return figure


def _widened(panel: Axes) -> None:
    """Widens the axis to a range with at least two ticks."""
    low, high = panel.get_xlim()
    if high / low < LEAST_SPAN:
        stretch = (LEAST_SPAN * low / high) ** 0.5
        panel.set_xlim(low / stretch, high * stretch)


def fairness(rows: Sequence[Row]) -> Figure | None:
    """Jain's index against the number of clients: 1 if all get the same. None if it is near 1 everywhere."""
    rows = [row for row in usual(rows) if row.case.clients > 1 and row.case.mode is not SharingMode.STREAMS]
    shown = _with_a_line(rows)
    if not shown or min(row.fairness.least for row in rows) >= EVEN:
        return None
    with styled():
        figure, panels = grid(shown, modes(rows))
        low = min(row.fairness.least for row in rows)
        for panel, load in zip(panels, shown, strict=True):
            here = [row for row in rows if row.case.load == load]
            _lines(panel, here, lambda row: row.fairness)
            panel.set_ylim(max(0.0, min(0.9, low - 0.05)), 1.01)
            panel.set_ylabel("Jain's index")
        return figure


def memory(rows: Sequence[Row]) -> Figure | None:
    """GPU memory of each client by its thread limit, for the first load, which needs the least memory itself."""
    measured = [row for row in rows if row.memory_mib is not None and row.case.load == rows[0].case.load]
    measured.sort(key=lambda row: (row.case.clients == PREFERRED_CLIENTS, row.case.clients))
    by_cap = {(row.case.mode, row.case.threads): row for row in measured}
    chosen = sorted(by_cap.values(), key=lambda row: -row.memory_mib.median if row.memory_mib else 0.0)
    if not chosen:
        return None
    with styled():
        figure = Figure(figsize=(8.2, 0.7 + 0.3 * len(chosen)), layout="constrained")
        panel = figure.add_subplot()
        values = [row.memory_mib.median for row in chosen if row.memory_mib]
        places = range(len(chosen))
        panel.barh(places, values, height=0.68, color=[LINE_STYLES[row.case.mode].colour for row in chosen])
        panel.set_yticks(places, [_capped(row) for row in chosen], color=TEXT)
        panel.invert_yaxis()
        for place, value in zip(places, values, strict=True):
            panel.annotate(f"{value:,.0f} MiB", (value, place), (5, 0), textcoords="offset points", va="center")
        panel.set_xlim(0, 1.15 * max(values))
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("MiB of each client")
        return figure


def _capped(row: Row) -> str:
    cap = f" at {row.case.threads:.3g} %" if row.case.threads not in (None, 100) else ""
    unit = "stream" if row.case.mode is SharingMode.STREAMS else "client"
    return f"{MODES[row.case.mode]}{cap}, {count_of(row.case.clients, unit)}"
