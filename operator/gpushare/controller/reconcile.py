"""One reconcile for the whole fleet: take a snapshot, plan, write what differs for a while; again after every change.

Guarantees: changes that arrive together lead to one plan; a write that the API refuses never ends the loop; a fleet
that matches its plan is not written. The plan is made in a thread, so that probes and watches are served meanwhile.
A round writes for a bounded time (`apply`), so that a change waits for no more than that.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from gpushare.api.timestamps import format_timestamp
from gpushare.controller.apply import Applier
from gpushare.controller.cache.fleet_cache import FleetCache, UnreadableError
from gpushare.controller.clock_jumps import ClockJumps
from gpushare.controller.differences import differences
from gpushare.controller.events import FleetEvents
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import Write
from gpushare.kube.client import Kube
from gpushare.planner import FleetMemory, ShareReport, plan

LOG = logging.getLogger(__name__)
DEBOUNCE_SECONDS = 0.2
PAUSE_PER_PLAN = 2.0
"""A plan for a large fleet takes longer than DEBOUNCE_SECONDS: we plan during a third of the time at most."""
SHORTEST_PHASE, LONGEST_PHASE = 0.5, 2.0
WRITING_PER_PLAN = 4.0
"""A phase of writes may take so much longer than the plan took, within these bounds in seconds: where there is much to
write, a fifth of the time goes into planning, and a change waits no longer than it must.
"""
COUNTS_SECONDS = 15.0
"""How long a change that moves counts alone may wait: which slots of a GPU are held changes all the time."""
UNREADABLE_SECONDS = 30.0


@contextmanager
def without_collections() -> Iterator[None]:
    """Keeps Python from looking for cycles. What a round makes has none: all of it stays, or goes by itself. To look at
    all of it again and again took a fifth of a plan for 5,000 nodes, and more of a larger one.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Reconciler:
    def __init__(
        self,
        kube: Kube,
        settings: OperatorSettings,
        meters: OperatorMeters,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now`: the time of day; periods counted by it begin at times kept in the API, so restarts do not matter.

        `monotonic`: seconds, which back-off is counted by, and which tell when the time of day was set.
        """
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self.cache = FleetCache(self._wake.set, self._wake_later)
        self.reports: Mapping[str, ShareReport] = {}
        """The report of each share, by the last plan."""
        self._memory = FleetMemory()
        self._settings = settings
        self._meters = meters
        self._now = now
        self._monotonic = monotonic
        self._clock_jumps = ClockJumps()
        self._kube = kube
        self._events = FleetEvents(kube, self.cache, settings.pod_name, monotonic)
        self._applier = Applier(kube, self.cache, self._events, monotonic, meters, self._wake.set)
        self._since: float | None = None
        self._plan_seconds = 0.0
        """How long the last plan took to make, with its snapshot and the search for what differs."""

    async def run(self) -> None:
        """Runs until cancelled. The cache must be complete."""
        try:
            await self._rounds()
        finally:
            await self._applier.close()
            await self.cache.claims.close()

    async def _rounds(self) -> None:
        self._wake.clear()  # by the lists, which are complete: the first plan waits for no more of them
        due: float | None = 0.0
        while True:
            if due != 0.0:
                await self._change(due)
            self._wake.clear()
            due = await self.once()

    async def _change(self, seconds: float | None) -> None:
        """Returns a moment after the first change, or after so many seconds without one."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(DEBOUNCE_SECONDS, PAUSE_PER_PLAN * self._plan_seconds))

    def _wake_later(self) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(COUNTS_SECONDS, self._wake.set)

    async def once(self) -> float | None:
        """One round. Returns the seconds until the next one is due without any change, 0 where more is to be written
        than there was time for, or None.
        """
        self._since = time.monotonic()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        try:
            with self._meters.round(), without_collections():
                writes, again = await self._plan()
            phase = min(max(SHORTEST_PHASE, WRITING_PER_PLAN * self._plan_seconds), LONGEST_PHASE)
            if not await self._applier.write(writes, phase):
                return 0.0
        except UnreadableError as error:
            LOG.error("%s", error)
            return UNREADABLE_SECONDS
        finally:
            self._since = None
        due = None if again is None else max(0.0, (again - self._now()).total_seconds())
        return min((seconds for seconds in (due, self._applier.retry_seconds()) if seconds is not None), default=None)

    async def _plan(self) -> tuple[list[Write], datetime | None]:
        """What to write, and when time alone may change the plan."""
        began, now = time.monotonic(), self._now()
        jumps = self._clock_jumps.look(now, self._monotonic(), self.cache.assignments())
        snapshot = self.cache.snapshot(now, jumps)
        if not snapshot.no_claims and any(share.by_claims for share in snapshot.shares):
            self.cache.claims.follow(self._kube)
            self.cache.claims.check()
            snapshot = self.cache.snapshot(now, jumps)
        snapshot = replace(snapshot, refused_writes=self._applier.refused)
        versions, unanswered = self.cache.versions(), self._applier.unanswered
        planned = await asyncio.to_thread(plan, snapshot, self._memory)
        self.reports = planned.reports
        self._events.report_pending(planned.pending)
        text = format_timestamp(now)
        writes = differences(planned, snapshot, self.cache, self._settings, text, versions, unanswered)
        self._plan_seconds = time.monotonic() - began
        return writes, planned.again_at

    def stalled_seconds(self) -> float:
        """How long the present round has taken; 0 between rounds."""
        return 0.0 if self._since is None else time.monotonic() - self._since
