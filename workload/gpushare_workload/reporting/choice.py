"""Which rows a plot or a headline is about, and how it tells a ratio. Pure."""

from collections.abc import Sequence

from gpushare_workload.bench.plan import Load, Mode
from gpushare_workload.bench.summary import Row

PREFERRED_CLIENTS = 8


def usual(rows: Sequence[Row]) -> list[Row]:
    """Without those at caps of their own, which are about memory."""
    return [row for row in rows if row.case.label == row.case.mode.value]


def compared_clients(rows: Sequence[Row], load: Load) -> int | None:
    """The number of clients to compare modes at: 8 where most modes were measured with it, else the next best."""
    counts: dict[int, set[Mode]] = {}
    for row in rows:
        if row.case.load == load:
            counts.setdefault(row.case.clients, set()).add(row.case.mode)
    return max(counts, key=lambda it: (len(counts[it]), it == PREFERRED_CLIENTS, it), default=None)


def times(ratio: float) -> str:
    """With three digits, whatever its size: 1.50×, 26.8×, 120×."""
    return f"{ratio:#.3g}".rstrip(".") + "×" if ratio < 1000 else f"{ratio:,.0f}×"
