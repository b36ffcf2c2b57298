"""Sends writes, stage by stage. A write that fails delays only those that depend on it; it is retried with back-off.

Guarantees: every answer goes into the cache at once, so that the next plan does not repeat the write before its watch
event arrives.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.controller.fleet_cache import FleetCache
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import MANAGER, Note, Write, WriteStage
from gpushare.fleet.pending import Pending
from gpushare.kube.client import API_ERRORS, Kube, Object
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.events import Event, reference

LOG = logging.getLogger(__name__)
AT_ONCE = 8
"""Writes in flight: enough for a large fleet, too few to trouble an API server."""
FIRST_BACKOFF = 1.0
LAST_BACKOFF = 300.0


class Applier:
    def __init__(
        self, kube: Kube, cache: FleetCache, instance: str, clock: Callable[[], float], meters: OperatorMeters
    ) -> None:
        """`instance`: who reports the events. `clock`: seconds, monotonic."""
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._meters = meters
        self._recorder = EventRecorder(kube, MANAGER, instance, clock)
        self._pending: dict[str, Object] = {}
        """References to the claims that an event was recorded about, by uid."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._retries: dict[tuple[str, str, str], tuple[float, float]] = {}
        """By write: (when it may be tried again, the back-off that this was)."""

    async def run(self, writes: list[Write]) -> float | None:
        """Seconds until a write that failed should be tried again, or None when nothing is left to do."""
        current = {write.key for write in writes}
        self._retries = {key: value for key, value in self._retries.items() if key in current}
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
        """It waits for its back-off, or it would release a share some of whose objects still exist."""
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
                self._record(note)
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
                self._cache.applied(write.resource, answer)
            case "merge":
                answer = await self._kube.patch(
                    write.resource, write.name, write.body, manager=write.manager, namespace=write.namespace
                )
                self._cache.observe(write.resource, answer)
            case "delete":
                await self._kube.delete(write.resource, write.name, namespace=write.namespace, uid=write.uid)

    def report(self, pending: Sequence[Pending]) -> None:
        """An event on each claim that fits nowhere, once for each capacity that is short."""
        references = {item.claim.uid: _reference(item) for item in pending}
        for uid in self._pending.keys() - references.keys():
            self._recorder.resolve(self._pending[uid], EventReason.CLAIM_PENDING)
        self._pending = references
        for item in pending:
            regarding = references[item.claim.uid]
            event = Event(regarding, "Warning", EventReason.CLAIM_PENDING, "Schedule", item.message, key=item.key)
            self._recorder.record(event)

    def _record(self, note: Note) -> None:
        known = self._cache.shares.get(note.share)
        if known is None:
            return
        share = {"metadata": {"name": known.name, "uid": known.uid}}
        regarding = reference(share, names.API_VERSION, "GpuShare")
        self._recorder.record(Event(regarding, note.kind, note.reason, note.action, note.text, happened=True))


def _reference(item: Pending) -> Object:
    namespace, _, name = item.claim.name.partition("/")
    claim = {"metadata": {"namespace": namespace, "name": name, "uid": item.claim.uid}}
    return reference(claim, "resource.k8s.io/v1", "ResourceClaim")
