"""Which agents are silent, judged by the observer's own clock. Pure: times are handed in.

Guarantees: times that agents write are never compared with ours, so clocks of nodes may differ; a heartbeat's age
counts from when we saw it change. What is seen for the first time is no news, so nothing is said of an agent before
its heartbeat has changed under our eyes, or has failed to for LEASE_SECONDS. Only time in which we watched counts:
after an outage of the API server, or of ours, every agent has its time to renew again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare.kube.coordination.heartbeat import LEASE_SECONDS, Renewal

POLL_SECONDS = 10.0
LONGEST_STEP = 2 * POLL_SECONDS
"""Readings that lie further apart count as that far apart: in between we did not watch."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """`at`: when this renewal was seen first, in seconds of watching; `changed`: it replaced another one."""

    renewal: Renewal | None
    at: float
    changed: bool = False


class HeartbeatAges:
    def __init__(self) -> None:
        self._watched = 0.0
        self._read_at: float | None = None
        self._seen: dict[str, _Seen] = {}

    def observe(self, nodes: Collection[str], renewals: Mapping[str, Renewal], now: float) -> None:
        """Takes a complete reading of the Leases. `nodes`: those known to have an agent. `now`: seconds."""
        if self._read_at is not None:
            self._watched += min(max(0.0, now - self._read_at), LONGEST_STEP)
        self._read_at = now
        self._seen = {node: self._next(self._seen.get(node), renewals.get(node)) for node in nodes}

    def is_reporting(self, node: str) -> bool | None:
        """Returns None while that is not known."""
        seen = self._seen.get(node)
        if seen is None:
            return None
        if self._watched - seen.at >= LEASE_SECONDS:
            return False
        return True if seen.changed else None

    def last_renewal(self, node: str) -> Renewal | None:
        """Returns None where its Lease was not there."""
        seen = self._seen.get(node)
        return seen.renewal if seen is not None else None

    def _next(self, seen: _Seen | None, renewal: Renewal | None) -> _Seen:
        if seen is None:
            return _Seen(renewal, self._watched)
        return _Seen(renewal, self._watched, changed=True) if _is_news(seen.renewal, renewal) else seen


def _is_news(last: Renewal | None, renewal: Renewal | None) -> bool:
    """A Lease that is gone is no news, nor is one that another API server shows as it was earlier."""
    if renewal is None:
        return False
    if last is None:
        return True
    return renewal.version > last.version and (renewal.time, renewal.holder) != (last.time, last.holder)
