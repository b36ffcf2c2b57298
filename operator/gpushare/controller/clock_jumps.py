"""Keeps a wait from ending early or late because somebody set the time of day. Times are handed in.

The beginning of a wait that ends clients (`maxWait`) is a time of day in the API. When this machine's clock is put
forward by hours, or the machine wakes from a suspension, nothing has waited longer: the beginning moves with the clock,
and the next plan writes it so. A clock that is set while no operator runs goes unnoticed.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from gpushare.api.gpunode import Assignment
from gpushare.planner.model import Jumps

LOG = logging.getLogger(__name__)
JUMP = timedelta(seconds=60)
"""Smaller differences between two rounds come from a clock that is being corrected in small steps."""


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
