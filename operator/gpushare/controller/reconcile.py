"""One reconcile for the whole fleet: take a snapshot, plan, write what differs; again when something changed.

Guarantees: changes that come together lead to one plan; a write that the API refuses never ends the loop; with nothing
to do, nothing is written. `stuck_seconds` tells a liveness probe how long the present round has taken.
"""

import asyncio
import logging
import time
from datetime import UTC, datetime

from gpushare.controller.apply import Applier
from gpushare.controller.differences import differences
from gpushare.controller.settings import Settings
from gpushare.controller.world import UnreadableError, World
from gpushare.fleet import plan
from gpushare.kube.client import Kube

LOG = logging.getLogger(__name__)
DEBOUNCE_SECONDS = 0.2
UNREADABLE_SECONDS = 30.0


class Reconciler:
    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._wake = asyncio.Event()
        self.world = World(self._wake.set)
        self._settings = settings
        self._applier = Applier(kube, self.world, settings.pod_name, time.monotonic)
        self._since: float | None = None

    async def run(self) -> None:
        """Runs until cancelled. The world must have been loaded."""
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
            snapshot = self.world.snapshot()
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            writes = differences(plan(snapshot), snapshot, self.world, self._settings, now)
            return await self._applier.run(writes)
        except UnreadableError as error:
            LOG.error("%s", error)
            return UNREADABLE_SECONDS
        finally:
            self._since = None

    def stuck_seconds(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since
