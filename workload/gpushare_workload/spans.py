"""What event timings say about launches that may have run at the same time. Pure."""

from collections.abc import Sequence

from gpushare_workload.backend.seam import Span


def whole(spans: Sequence[Span]) -> float:
    """ms from the first start to the last end; 0 without spans."""
    return max((it.end for it in spans), default=0.0) - min((it.start for it in spans), default=0.0)


def most_at_once(spans: Sequence[Span]) -> int:
    """The largest number of spans that have a moment in common; one that ends when another starts does not."""
    edges = sorted([(it.start, 1) for it in spans] + [(it.end, -1) for it in spans])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most
