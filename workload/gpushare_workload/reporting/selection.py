"""The rows that a plot or a headline shows, and the text of a ratio. Pure."""

from collections.abc import Sequence

from gpushare_workload.bench.plan import Load, SharingMode
from gpushare_workload.bench.results.summary import Row

PREFERRED_CLIENTS = 8


def usual(rows: Sequence[Row]) -> list[Row]:
    """Without the rows at special thread limits, which were measured for their memory."""
    return [row for row in rows if row.case.label == row.case.mode.value]


def compared_clients(rows: Sequence[Row], load: Load) -> int | None:
    """The number of clients at which modes are compared: the one with most modes, preferably 8, else the largest."""
    counts: dict[int, set[SharingMode]] = {}
    for row in rows:
        if row.case.load == load:
            counts.setdefault(row.case.clients, set()).add(row.case.mode)
    return max(counts, key=lambda it: (len(counts[it]), it == PREFERRED_CLIENTS, it), default=None)


def times(ratio: float) -> str:
    """A ratio with three digits: 1.50×, 26.8×, 120×."""
    return f"{ratio:#.3g}".rstrip(".") + "×" if ratio < 1000 else f"{ratio:,.0f}×"
