"""Throughput against depth: how much a client's habit of waiting decides what sharing gains."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

from gpushare_workload.backend.work import Load
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.reporting.figures.panels import HOLLOW, IDEAL, grid, points, styled
from gpushare_workload.reporting.selection import compared_clients, usual
from gpushare_workload.reporting.style import LINE_STYLES
from gpushare_workload.results.summary import Row

SHOWN = (SharingMode.TIME_SLICING, SharingMode.MPS, SharingMode.MPS_EQUAL_CAPS)


def depth(rows: Sequence[Row]) -> Figure | None:
    """Kernels per second of all clients together at each depth; a hollow mark is the same depth as one graph."""
    rows = [row for row in usual(rows) if row.case.mode in SHOWN]
    bases = [base for base in dict.fromkeys(_base(row.case.load) for row in rows) if len(_depths(rows, base)) > 1]
    if not bases:
        return None
    clients = {base: compared_clients(rows, base) or 1 for base in bases}
    drawn = [mode for mode in SHOWN if any(row.case.mode is mode for row in rows)]
    hollow = "as one graph" if any(row.case.load.graph for row in rows) else ""
    with styled():
        figure, panels = grid(bases, drawn, ideal="one client alone", hollow=hollow, depths=False)
        for panel, base in zip(panels, bases, strict=True):
            here = [row for row in rows if _base(row.case.load) == base]
            for mode in drawn:
                several = [row for row in here if (row.case.clients, row.case.mode) == (clients[base], mode)]
                _line(panel, several, mode)
            alone = sorted(
                (row.case.load.depth, row.total.median)
                for row in here
                if (row.case.clients, row.case.mode, row.case.load.graph) == (1, SharingMode.TIME_SLICING, False)
            )
            panel.plot([place for place, _ in alone], [rate for _, rate in alone], zorder=1, **IDEAL)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            depths = _depths(rows, base)
            panel.xaxis.set_major_locator(FixedLocator(depths))
            panel.set_xticks(depths, [str(number) for number in depths])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_xlabel(f"launches between two waits, {clients[base]} clients")
            panel.set_ylabel("kernels/s, logarithmic")
        return figure


def _base(load: Load) -> Load:
    return Load(load.kind, load.grid)


def _depths(rows: Sequence[Row], base: Load) -> list[int]:
    return sorted({row.case.load.depth for row in rows if _base(row.case.load) == base})


def _line(panel: Axes, rows: Sequence[Row], mode: SharingMode) -> None:
    for graph in (False, True):
        line = sorted((row.case.load.depth, row.total) for row in rows if row.case.load.graph is graph)
        if not line:
            continue
        look = LINE_STYLES[mode].line()
        if graph:
            look |= {"linestyle": "", "markeredgecolor": look["color"], **HOLLOW}
        panel.errorbar(*points(line), capsize=2.5, elinewidth=1.0, **look)
