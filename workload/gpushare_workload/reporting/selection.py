"""The rows that a plot or a headline shows, and the text of a ratio. Pure."""

from collections.abc import Sequence

from gpushare_workload.backend.work import Load
from gpushare_workload.mps.modes import SharingMode
from gpushare_workload.results.summary import Row

PREFERRED_CLIENTS = 8


def usual(rows: Sequence[Row]) -> list[Row]:
    """The rows without those at special thread limits, which were measured for their memory."""
    return [row for row in rows if row.case.label == row.case.mode.value]


def compared_clients(rows: Sequence[Row], load: Load) -> int | None:
    """The number of clients at which modes are compared: the one with most modes, preferably 8, else the largest."""
    counts: dict[int, set[SharingMode]] = {}
    for row in rows:
        if row.case.load == load:
            counts.setdefault(row.case.clients, set()).add(row.case.mode)
    return max(counts, key=lambda count: (len(counts[count]), count == PREFERRED_CLIENTS, count), default=None)


def by_depth(rows: Sequence[Row]) -> dict[Load, list[Row]]:
    """The rows of MPS with a ratio to time slices, without graphs, by load at depth 1; from shallow to deep."""
    by_load: dict[Load, list[Row]] = {}
    for row in rows:
        load = row.case.load
        shown = row.case.mode is SharingMode.MPS and row.case.threads == 100 and row.case.clients > 1
        if shown and not load.graph and row.of_time_slicing and row.case.clients == compared_clients(rows, load):
            by_load.setdefault(Load(load.kind, load.grid), []).append(row)
    return {load: sorted(each, key=lambda row: row.case.load.depth) for load, each in by_load.items()}


def times(ratio: float) -> str:
    """A ratio with three digits: 1.50×, 26.8×, 120×."""
    return f"{ratio:#.3g}".rstrip(".") + "×" if ratio < 1000 else f"{ratio:,.0f}×"
