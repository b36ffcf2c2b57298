"""Sends writes, stage by stage. One that fails holds up only what depends on it, and is tried again with back-off.

Guarantees: every answer goes into the world at once, so that the next plan does not repeat the write while its watch
event is still on the way.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.controller.differences import MANAGER
from gpushare.controller.fleet_cache import FleetCache
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import Note, Write, WriteStage
from gpushare.fleet.pending import Pending
from gpushare.kube.client import API_ERRORS, GPU_SHARES, Kube, Object
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.events import Event, reference

LOG = logging.getLogger(__name__)
AT_ONCE = 8
"""Writes in flight: enough for a large fleet, too few to trouble an API server."""
FIRST_BACKOFF = 1.0
LAST_BACKOFF = 300.0


class Applier:
    def __init__(
        self, kube: Kube, world: FleetCache, instance: str, clock: Callable[[], float], meters: OperatorMeters
    ) -> None:
        """`instance`: who reports the events. `clock`: seconds, monotonic."""
        self._kube = kube
        self._world = world
        self._clock = clock
        self._meters = meters
        self._announcer = EventRecorder(kube, MANAGER, instance, clock)
        self._told: dict[str, Object] = {}
        """Claims told of, by uid."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._retries: dict[tuple[str, str, str], tuple[float, float]] = {}
        """By write: (when it may be tried again, the back-off that this was)."""

    async def run(self, writes: list[Write]) -> float | None:
        """Seconds until a write that failed should be tried again, or None when nothing is left to do."""
        wanted = {write.key for write in writes}
        self._retries = {key: value for key, value in self._retries.items() if key in wanted}
        stuck: set[str] = set()
        for _, group in groupby(writes, key=lambda write: write.stage):
            due = [write for write in group if not self._held_up(write, stuck)]
            for write, done in zip(due, await asyncio.gather(*map(self._send, due)), strict=True):
                if not done:
                    stuck |= write.shares
        if not self._retries:
            return None
        return max(0.0, min(when for when, _ in self._retries.values()) - self._clock())

    def _held_up(self, write: Write, stuck: set[str]) -> bool:
        """Waiting for its back-off, or the release of a share of which something is still there."""
        when, _ = self._retries.get(write.key, (0.0, 0.0))
        if when > self._clock():
            stuck |= write.shares
            return True
        return write.stage is WriteStage.RELEASE and bool(write.shares & stuck)

    async def _send(self, write: Write) -> bool:
        async with self._slots:
            try:
                await self._carry_out(write)
            except API_ERRORS as error:
                self._failed(write, error)
                self._meters.wrote(write, done=False)
                return False
            self._meters.wrote(write, done=True)
            self._retries.pop(write.key, None)
            LOG.info("%s", write)
            for note in write.notes:
                self._tell(note)
            return True

    def _failed(self, write: Write, error: Exception) -> None:
        _, last = self._retries.get(write.key, (0.0, FIRST_BACKOFF / 2))
        backoff = min(last * 2, LAST_BACKOFF)
        self._retries[write.key] = self._clock() + backoff, backoff
        LOG.warning("%s failed, again in %.0f s: %s", write, backoff, error)

    async def _carry_out(self, write: Write) -> None:
        match write.verb:
            case "apply":
                answer = await self._kube.apply(
                    write.resource,
                    write.name,
                    write.body,
                    manager=write.manager,
                    namespace=write.namespace,
                    subresource=write.subresource,
                )
                self._world.applied(write.resource, answer)
            case "merge":
                answer = await self._kube.patch(
                    write.resource, write.name, write.body, manager=write.manager, namespace=write.namespace
                )
                self._world.observe(write.resource, answer)
            case "delete":
                await self._kube.delete(write.resource, write.name, namespace=write.namespace, uid=write.uid)

    def tell(self, pending: Sequence[Pending]) -> None:
        """An event on each claim that fits nowhere, once for each capacity that lacks."""
        about = {item.claim.uid: _reference(item) for item in pending}
        for uid in self._told.keys() - about.keys():
            self._announcer.resolve(self._told[uid], EventReason.CLAIM_PENDING)
        self._told = about
        for item in pending:
            regarding = about[item.claim.uid]
            news = Event(regarding, "Warning", EventReason.CLAIM_PENDING, "Schedule", item.message, key=item.key)
            self._announcer.record(news)

    def _tell(self, note: Note) -> None:
        share = self._world.get(GPU_SHARES, note.share)
        if share is None:
            return
        regarding = reference(share, names.API_VERSION, "GpuShare")
        self._announcer.record(Event(regarding, note.kind, note.reason, note.action, note.text, happened=True))


def _reference(item: Pending) -> Object:
    namespace, _, name = item.claim.name.partition("/")
    claim = {"metadata": {"namespace": namespace, "name": name, "uid": item.claim.uid}}
    return reference(claim, "resource.k8s.io/v1", "ResourceClaim")
