"""Writes events, each once per change, however often a loop records the same.

Guarantees: an event that equals the last one of its object, reason and subject is not written again, neither by the
next loop nor by the next process: its name is made of its content, so the API server refuses a second one while it
keeps the first (an hour by default). What ended and came back, or changed and changed back, counts up the `series` of
its event, as events.k8s.io/v1 means it; the count starts anew with each process. Memory and requests are bounded.
`record` never waits and never raises. Many events are recorded only once. So one that an API server could not take for
now is tried again for a day, with the time at which it was recorded; one that it refused is logged, and written when it
is recorded again. Where too many wait, a Normal event gives way to a Warning.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus

from gpushare.kube.client import API_ERRORS, EVENTS, Kube, KubeError, Object
from gpushare.kube.events.correlator import CorrelateResult, EventCorrelator
from gpushare.kube.events.event import Event, Reason, event_object, namespace_of, series_patch

LOG = logging.getLogger(__name__)
MAX_REQUESTS = 64
"""Events that are being written or are to be tried again: a request may take its whole time limit."""
AT_ONCE = 8
"""Requests on the way at a time. Each has a connection of its own, which takes 0.3 MiB for as long as it is kept: an
agent that starts on a full node may have an event about each of its clients."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, *[30.0] * 19, *[60.0] * 1430)
"""Seconds before each further attempt: a day."""


class EventRecorder:
    def __init__(
        self,
        kube: Kube,
        controller: str,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        correlator: EventCorrelator | None = None,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """`controller`: who reports, such as gpushare-agent; `instance`: its pod. `clock`: seconds, monotonic.

        `pauses`: seconds before each further attempt to write an event.
        """
        self._kube = kube
        self._controller = controller
        self._instance = instance
        self._clock = clock
        self._correlator = correlator or EventCorrelator()
        self._pauses = pauses
        self._requests: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting: dict[asyncio.TimerHandle, Event] = {}
        """Those to be tried again."""
        self._left_out = 0
        """Events in a row that were not written, since too many were under way."""

    @property
    def requests_under_way(self) -> int:
        """The writes under way or waiting for another try, MAX_REQUESTS at most."""
        return len(self._requests) + len(self._waiting)

    def record(self, event: Event) -> None:
        """Writes the event, unless it equals the last one of the same object, reason and subject."""
        if self.requests_under_way >= MAX_REQUESTS and not self._made_room(event):
            if not self._left_out:
                name = event.regarding["name"]
                LOG.warning("event %s about %s not written: too many are under way", event.reason, name)
            self._left_out += 1
            return
        if self._left_out > 1:
            LOG.warning("%d further events were not written for that", self._left_out - 1)
        self._left_out = 0
        result = self._correlator.correlate(event, self._clock())
        if result is not None:
            self._begin(_Attempt(event, result, datetime.now(UTC), self._pauses))

    def resolve(self, regarding: Object, reason: Reason, subject: str = "") -> None:
        """What the last such event reported has ended: recording it again is a new occurrence."""
        self._correlator.resolve(regarding, reason, subject)

    async def flush(self) -> None:
        """Returns once all that was recorded is written, given up, or to be tried again."""
        if self._requests:
            await asyncio.wait(self._requests)  # not `gather`: its cancellation would cancel the requests

    async def close(self) -> None:
        """Gives up what is not written yet."""
        for request in self._requests:
            request.cancel()
        for handle in self._waiting:
            handle.cancel()
        self._waiting.clear()
        await self.flush()

    def _made_room(self, event: Event) -> bool:
        """Whether a Normal event was given up for this Warning."""
        normal = next((handle for handle, other in self._waiting.items() if other.type == "Normal"), None)
        if event.type != "Warning" or normal is None:
            return False
        normal.cancel()
        self._correlator.failed(self._waiting.pop(normal))
        return True

    def _begin(self, attempt: "_Attempt") -> None:
        request = asyncio.create_task(self._write_in_turn(attempt))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _write_in_turn(self, attempt: "_Attempt") -> None:
        async with self._turns:
            await self._write(attempt)

    async def _write(self, attempt: "_Attempt") -> None:
        event, result = attempt.event, attempt.result
        try:
            if result.count == 1 or not await self._count_up(event, result.count, attempt.at):
                await self._create(attempt)
        except API_ERRORS as error:
            text = str(error) or type(error).__name__
            if _may_pass(error) and attempt.pauses:
                if attempt.pauses is self._pauses:
                    LOG.warning("event %s about %s not written yet: %s", event.reason, event.regarding["name"], text)
                self._try_again(attempt)
                return
            self._correlator.failed(event)
            LOG.warning("event %s about %s not written: %s", event.reason, event.regarding["name"], text)

    def _try_again(self, attempt: "_Attempt") -> None:
        def begin() -> None:
            self._waiting.pop(handle)
            self._begin(replace(attempt, pauses=attempt.pauses[1:]))

        handle = asyncio.get_running_loop().call_later(attempt.pauses[0], begin)
        self._waiting[handle] = attempt.event

    async def _create(self, attempt: "_Attempt") -> None:
        event, result = attempt.event, attempt.result
        body = event_object(
            event,
            name=self._name(event),
            controller=self._controller,
            instance=self._instance,
            at=attempt.at,
        )
        try:
            await self._kube.create(EVENTS, body, namespace=body["metadata"]["namespace"])
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            if result.repeats:
                await self._count_up(event, max(result.count, 2), attempt.at)

    async def _count_up(self, event: Event, count: int, at: datetime) -> bool:
        """False: the API server has deleted the event for its age, so there is nothing to count up."""
        try:
            await self._kube.patch(
                EVENTS,
                self._name(event),
                series_patch(count, at),
                manager=self._controller,
                namespace=namespace_of(event.regarding),
            )
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return True

    def _name(self, event: Event) -> str:
        identity = "\0".join((self._controller, *event.topic, event.content))
        # No part of a name may end in one of these: the API server would refuse every event about a pod so named.
        start = event.regarding["name"][:200].rstrip("-.")
        return f"{start}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`at`: when the event was recorded. `pauses`: seconds before each further attempt."""

    event: Event
    result: CorrelateResult
    at: datetime
    pauses: Sequence[float]


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: there was no answer, or the server is too busy or has failed."""
    if not isinstance(error, KubeError):
        return True
    return error.failed or error.status == HTTPStatus.TOO_MANY_REQUESTS
