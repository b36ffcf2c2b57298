"""One reconcile for the whole fleet: take a snapshot, plan, write what differs; again when something changed.

Guarantees: changes that come together lead to one plan; a write that the API refuses never ends the loop; with nothing
to do, nothing is written. `stuck_seconds` tells a liveness probe how long the present round has taken.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from gpushare.api.timestamps import format_timestamp
from gpushare.controller.apply import Applier
from gpushare.controller.differences import differences
from gpushare.controller.fleet_cache import FleetCache, UnreadableError
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.settings import OperatorSettings
from gpushare.fleet import ShareReport, plan
from gpushare.kube.client import Kube

LOG = logging.getLogger(__name__)
DEBOUNCE_SECONDS = 0.2
UNREADABLE_SECONDS = 30.0


class Reconciler:
    def __init__(
        self,
        kube: Kube,
        settings: OperatorSettings,
        meters: OperatorMeters,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`now`: the time of day; whatever is counted by it is kept in the API, so that restarts do not matter."""
        self._wake = asyncio.Event()
        self.world = FleetCache(self._wake.set)
        self.leads = False
        """Whether the Lease is ours; a process that loses it ends."""
        self.reports: Mapping[str, ShareReport] = {}
        """Of each share, by the plan that was made last."""
        self._settings = settings
        self._meters = meters
        self._now = now
        self._kube = kube
        self._applier = Applier(kube, self.world, settings.pod_name, time.monotonic, meters)
        self._since: float | None = None

    async def run(self) -> None:
        """Runs until cancelled. The world must have been loaded."""
        try:
            await self._rounds()
        finally:
            await self.world.claims.close()

    async def _rounds(self) -> None:
        retry: float | None = 0.0
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), retry)
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(DEBOUNCE_SECONDS)
            self._wake.clear()
            retry = await self.once()

    async def once(self) -> float | None:
        """Seconds until it should be tried again though nothing changes, or None."""
        self._since = time.monotonic()
        try:
            with self._meters.round():
                return await self._round()
        except UnreadableError as error:
            LOG.error("%s", error)
            return UNREADABLE_SECONDS
        finally:
            self._since = None

    async def _round(self) -> float | None:
        snapshot = self.world.snapshot(self._now())
        if not snapshot.no_claims and any(share.by_claims for share in snapshot.shares):
            self.world.claims.follow(self._kube)
            self.world.claims.check()
            snapshot = self.world.snapshot(snapshot.now)
        planned = plan(snapshot)
        self.reports = planned.reports
        writes = differences(planned, snapshot, self.world, self._settings, format_timestamp(snapshot.now))
        retry = await self._applier.run(writes)
        self._applier.tell(planned.pending)
        due = None if planned.again_at is None else (planned.again_at - self._now()).total_seconds()
        return min((max(0.0, seconds) for seconds in (retry, due) if seconds is not None), default=None)

    def stuck_seconds(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since
