"""Keeps waits as long as they are when the time of day is set. Times are handed in.

A wait that ends clients (`maxWait`) began at a time that is kept in the API. When this machine's time of day is put
forward by hours, or it wakes from a suspension, that wait has not become longer: its beginning moves with the clock,
and the next plan writes it so. What is set while no operator runs, nobody sees.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from gpushare.api.gpunode import Assignment
from gpushare.fleet.model import Jumps

LOG = logging.getLogger(__name__)
JUMP = timedelta(seconds=60)
"""A smaller difference between two rounds is one that is being put right, or a round that was long."""


class ClockJumps:
    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None
        self._jumps: dict[tuple[str, str], timedelta] = {}

    def look(self, now: datetime, monotonic: float, assignments: Iterable[Assignment]) -> Jumps:
        """How far each wait of `assignments` has to move, which is not written yet. Call it at least once a plan.

        `now`: the time of day; `monotonic`: seconds that nobody sets. `assignments`: as the API has them.
        """
        jump = timedelta(0)
        if self._last is not None:
            before, at = self._last
            jump = (now - before) - timedelta(seconds=monotonic - at)
        self._last = now, monotonic
        if abs(jump) < JUMP:
            jump = timedelta(0)
            if not self._jumps:
                return {}
        else:
            LOG.warning("the time of day was set by %+.0f s: what waits goes on waiting", jump.total_seconds())
        waiting = {(item.uuid, item.waiting_since) for item in assignments if item.waiting_since is not None}
        moved = {key: self._jumps.get(key, timedelta(0)) + jump for key in waiting}
        self._jumps = {key: by for key, by in moved.items() if by}
        return self._jumps
