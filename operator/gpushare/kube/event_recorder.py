"""Events once per change, however often a loop tells the same.

Guarantees: what was told last about a subject is not told again, neither by the next loop nor by the next process: an
event's name is made of what it says, so the API server refuses a second one while the first is kept (an hour by
default). What ended and came back, or changed and changed back, counts up its event's series, as events.k8s.io/v1
means it; the count starts anew with each process. Memory and requests are bounded. `tell` never waits and never
raises; an event that could not be written is logged, and written when its loop tells it again.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from gpushare.api.conditions import EventReason, ShareReason
from gpushare.kube import events
from gpushare.kube.client import API_ERRORS, EVENTS, KubeError, Object, Resource
from gpushare.kube.event_correlator import Delivery, Event, EventCorrelator

LOG = logging.getLogger(__name__)
AT_ONCE = 64
"""Requests under way: each may take its whole time limit when the API server hangs."""

__all__ = ["EventRecorder", "Event"]


class EventWriter(Protocol):
    """What is asked of gpushare.kube.client.Kube, with its errors."""

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object: ...

    async def patch(
        self, resource: Resource, name: str, body: Any, *, manager: str, namespace: str | None = None
    ) -> Object: ...


class EventRecorder:
    def __init__(
        self, kube: EventWriter, controller: str, instance: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`controller`: who reports, such as gpushare-agent; `instance`: its pod. `clock`: seconds, monotonic."""
        self._kube = kube
        self._controller = controller
        self._instance = instance
        self._clock = clock
        self._telling = EventCorrelator()
        self._requests: set[asyncio.Task[None]] = set()

    def tell(self, news: Event) -> None:
        """Writes an event unless this is what was told last of the same object, reason and subject."""
        if len(self._requests) >= AT_ONCE:
            LOG.warning("event %s about %s not written: too many are under way", news.reason, news.regarding["name"])
            return
        turn = self._telling.turn(news, self._clock())
        if turn is not None:
            request = asyncio.create_task(self._write(news, turn))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    def over(self, regarding: Object, reason: EventReason | ShareReason, subject: str = "") -> None:
        """What was told last of it holds no more: telling it again is news."""
        self._telling.over(regarding, reason, subject)

    async def flush(self) -> None:
        """Returns once everything told is written or given up."""
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def close(self) -> None:
        """Gives up what is not written yet."""
        for request in self._requests:
            request.cancel()
        await self.flush()

    async def _write(self, news: Event, turn: Delivery) -> None:
        try:
            if turn.times == 1 or not await self._count_up(news, turn.times):
                await self._create(news, turn)
        except API_ERRORS as error:
            self._telling.failed(news)
            LOG.warning("event %s about %s not written: %s", news.reason, news.regarding["name"], error)

    async def _create(self, news: Event, turn: Delivery) -> None:
        body = events.event(
            news.regarding,
            controller=self._controller,
            instance=self._instance,
            kind=news.kind,
            reason=news.reason,
            action=news.action,
            note=news.note,
            name=self._name(news),
        )
        try:
            await self._kube.create(EVENTS, body, namespace=body["metadata"]["namespace"])
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            if turn.repeats:
                await self._count_up(news, max(turn.times, 2))

    async def _count_up(self, news: Event, times: int) -> bool:
        """False: the event is gone by age, so there is nothing to count up."""
        series = {"count": times, "lastObservedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        try:
            await self._kube.patch(
                EVENTS,
                self._name(news),
                {"series": series},
                manager=self._controller,
                namespace=events.namespace_of(news.regarding),
            )
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return True

    def _name(self, news: Event) -> str:
        said = "\0".join((self._controller, *news.topic, news.content))
        return f"{news.regarding['name'][:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
