"""Sends the writes of the latest plan, while the next plan is being made.

Guarantees: of each object only one write is under way, and what the latest plan no longer wants is not begun. A share
gets its finalizer and its DaemonSet before a node asks for its pods or gives it a GPU, and loses its finalizer last.
Nothing else waits for anything else for long: a node does not wait for others, nor a status for the fleet. A write that
fails is retried with back-off. Every answer goes into the cache at once, so that the next plan does not repeat the
write before its watch event arrives.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import MANAGER, Note, Write, WriteStage
from gpushare.kube.client import API_ERRORS, GPU_SHARES, Kube, Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.events.recorder import EventRecorder
from gpushare.planner.pending import Pending

LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""Writes to nodes that are in flight together: enough for a large fleet, too few to trouble an API server."""
REPORTS_AT_ONCE = 4
REACHES_AT_ONCE = 2
"""Statuses and templates have a lane of their own each: neither waits for thousands of the other, or for nodes."""
REACHES_A_ROUND = 200
"""Of those that wait for no back-off: there may be thousands, and other changes must not wait for all of them."""
REPORT_SECONDS = 1.0
"""How long a status waits for the writes that it is about; those to a large fleet take longer."""
FIRST_BACKOFF = 1.0
LAST_BACKOFF = 300.0

Key = tuple[str, str, str]


@dataclass(slots=True)
class _Batch:
    """The writes of one plan. `prepared`: of a share, set once its finalizer and DaemonSet were answered for."""

    prepared: dict[str, asyncio.Event] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    """Shares of which a write failed, or waits for its back-off."""
    unheld: set[str] = field(default_factory=set)
    """Shares that could not be given their finalizer: they get nothing yet that somebody would have to take back."""


class Applier:
    def __init__(
        self,
        kube: Kube,
        cache: FleetCache,
        instance: str,
        clock: Callable[[], float],
        meters: OperatorMeters,
        drained: Callable[[], None],
    ) -> None:
        """`instance`: who reports the events. `clock`: seconds, monotonic.

        `drained` is called in the event loop when the last write was answered, or one ended by an error of ours; not
        after statuses alone: no plan depends on them, and the next one would find other counts to report.
        """
        self._kube = kube
        self._cache = cache
        self._clock = clock
        self._meters = meters
        self._drained = drained
        self._recorder = EventRecorder(kube, MANAGER, instance, clock)
        self._pending: dict[str, Object] = {}
        """References to the claims that an event was recorded about, by uid."""
        self._lanes = {
            WriteStage.REPORT: asyncio.Semaphore(REPORTS_AT_ONCE),
            WriteStage.REACH: asyncio.Semaphore(REACHES_AT_ONCE),
        }
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._retries: dict[Key, tuple[float, float]] = {}
        """By write: (when it may be tried again, the back-off that this was)."""
        self._batch = _Batch()
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._replaceable: set[asyncio.Task[None]] = set()
        """Those that a newer plan ends, unless they are among `_sending`: however slow the API server is, no more wait
        than one plan has writes."""
        self._sending: set[asyncio.Task[Any]] = set()
        self._in_flight: dict[Key, tuple[Write, asyncio.Event]] = {}
        self._plan_due = False
        """Something else than a status was answered, or a write failed, since `drained` was called."""
        self._moved_at = clock()
        """When a write was answered last, or the first one of an idle time was begun."""

    def submit(self, writes: list[Write]) -> None:
        """Replaces what has not begun yet. Raises what ended an earlier write and was no refusal."""
        if self._error is not None:
            raise self._error
        wanted = {write.key for write in writes}
        self._retries = {key: value for key, value in self._retries.items() if key in wanted}
        if not self.busy:
            self._moved_at = self._clock()
        for task in self._replaceable - self._sending:
            task.cancel()
        preparing = {share: event for share, event in self._batch.prepared.items() if not event.is_set()}
        self._batch = batch = _Batch(preparing)
        due: list[Write] = []
        reaching = 0
        for write in writes:
            if self._waits(write):
                batch.stuck |= write.shares
                batch.unheld |= write.shares if _holds(write) else frozenset()
            elif self._in_flight.get(write.key, (None, None))[0] != write:
                reaching += write.stage is WriteStage.REACH
                if write.stage is not WriteStage.REACH or reaching <= REACHES_A_ROUND:
                    due.append(write)
        self._start(batch, due)

    def _start(self, batch: _Batch, due: list[Write]) -> None:
        preparing: dict[frozenset[str], list[Write]] = {}
        nodes: dict[str, list[Write]] = {}
        reports, releasing, others = [], [], []
        for write in due:
            if write.stage <= WriteStage.RUN:
                preparing.setdefault(write.shares, []).append(write)
            elif write.stage in (WriteStage.LABEL, WriteStage.ASSIGN):
                nodes.setdefault(write.name, []).append(write)
            elif write.stage is WriteStage.REPORT:
                reports.append(write)
            elif write.stage is WriteStage.RELEASE:
                releasing.append(write)
            else:
                others.append(write)
        for shares, found in preparing.items():
            earlier = [batch.prepared[share] for share in shares & batch.prepared.keys()]
            batch.prepared |= {share: asyncio.Event() for share in shares}
            self._run(self._prepare(batch, shares, found, earlier))
        for shares, alike in _by_shares(nodes.values()).items():
            self._replaceable.add(self._run(self._write_nodes(batch, shares, alike)))
        for write in others:
            self._replaceable.add(self._run(self._write_prepared(batch, write)))
        # Without those that were given up above: each keeps its plan, and so all plans before would be kept in a chain.
        before = [task for task in self._tasks if not task.cancelling()]
        for write in reports:
            self._replaceable.add(self._run(self._report(batch, write, before)))
        for write in releasing:
            self._replaceable.add(self._run(self._release(batch, write, before)))

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name="write")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @property
    def under_way(self) -> list[Write]:
        """Sent, and not answered yet."""
        return [write for write, _ in self._in_flight.values()]

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    @property
    def stalled_seconds(self) -> float:
        """How long no write was answered though some are under way."""
        return self._clock() - self._moved_at if self.busy else 0.0

    def retry_seconds(self) -> float | None:
        """Until a write that failed should be tried again, or None when nothing waits for that."""
        if not self._retries:
            return None
        return max(0.0, min(when for when, _ in self._retries.values()) - self._clock())

    async def idle(self) -> None:
        """Returns once nothing is under way. Raises what a write raised that was no refusal."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._replaceable.discard(task)
        if not task.cancelled():
            error = task.exception()
            self._error = self._error or error
        if self._error is not None or (self._plan_due and not self._tasks):
            self._plan_due = False
            self._drained()

    def _waits(self, write: Write) -> bool:
        when, _ = self._retries.get(write.key, (0.0, 0.0))
        return when > self._clock()

    async def _prepare(
        self, batch: _Batch, shares: frozenset[str], writes: list[Write], earlier: list[asyncio.Event]
    ) -> None:
        """`writes`: HOLD and RUN, of the same shares. `earlier`: set once those of the plan before were answered."""
        try:
            for event in earlier:
                await event.wait()
            for _, group in groupby(writes, key=lambda write: write.stage):
                if shares & batch.unheld:
                    break
                await asyncio.gather(*(self._write(batch, write) for write in group))
        finally:
            for share in shares:
                batch.prepared[share].set()

    async def _write_nodes(self, batch: _Batch, shares: frozenset[str], nodes: list[list[Write]]) -> None:
        """`nodes`: the writes of each, all about the same `shares`. Returns once all were answered.

        One task waits for its turn here, rather than one for each node: a newer plan would end thousands, and begin
        them again. Shares take turns, so one of few nodes does not wait for one of many.
        """
        await self._prepared(batch, shares)
        if shares & batch.unheld:
            return
        begun = []
        for writes in nodes:
            await self._slots.acquire()
            task = self._run(self._write_node(batch, writes))
            task.add_done_callback(lambda _: self._slots.release())
            self._replaceable.add(task)
            begun.append(task)
        await asyncio.wait(begun)

    async def _write_node(self, batch: _Batch, writes: list[Write]) -> None:
        """`writes`: of one node, its label and then its assignments; the next node begins once both were answered."""
        for write in writes:
            await self._write_alone(batch, write)

    async def _write_prepared(self, batch: _Batch, write: Write) -> None:
        await self._prepared(batch, write.shares)
        await self._write(batch, write)

    async def _prepared(self, batch: _Batch, shares: frozenset[str]) -> None:
        for share in shares & batch.prepared.keys():
            await batch.prepared[share].wait()

    async def _report(self, batch: _Batch, write: Write, before: list["asyncio.Task[None]"]) -> None:
        if before:
            await asyncio.wait(before, timeout=REPORT_SECONDS)
        await self._write(batch, write)

    async def _release(self, batch: _Batch, write: Write, before: list["asyncio.Task[None]"]) -> None:
        """Not while some object of its share may still exist."""
        if before:
            await asyncio.wait(before)
        if not write.shares & batch.stuck:
            await self._write(batch, write)

    async def _write(self, batch: _Batch, write: Write) -> None:
        async with self._lanes.get(write.stage, self._slots):
            await self._write_alone(batch, write)

    async def _write_alone(self, batch: _Batch, write: Write) -> None:
        """Not while another write to the same part of the object is under way, nor once a newer plan has come."""
        while batch is self._batch and (earlier := self._in_flight.get(write.key)) is not None:
            await earlier[1].wait()
        if batch is not self._batch:
            return
        answered = asyncio.Event()
        self._in_flight[write.key] = write, answered
        task = asyncio.current_task()
        if task is not None:
            self._sending.add(task)
        try:
            done = await self._send(write)
            self._plan_due |= not done or write.stage is not WriteStage.REPORT
            if not done:
                batch.stuck |= write.shares
                for one in (batch, self._batch) if _holds(write) else ():  # a newer plan may have come meanwhile
                    one.unheld |= write.shares
        finally:
            del self._in_flight[write.key]
            if task is not None:
                self._sending.discard(task)
            answered.set()
            self._moved_at = self._clock()

    async def _send(self, write: Write) -> bool:
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
        pause = max(backoff, getattr(error, "retry_after", 0.0))
        self._retries[write.key] = self._clock() + pause, backoff
        LOG.warning("%s failed, again in %.0f s: %s", write, pause, error)

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
            case "json":
                answer = await self._kube.patch(
                    write.resource, write.name, list(write.operations), manager=write.manager, kind="json"
                )
                self._cache.applied(write.resource, answer)
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


def _holds(write: Write) -> bool:
    return write.stage is WriteStage.HOLD and write.resource == GPU_SHARES


def _by_shares(nodes: Iterable[list[Write]]) -> dict[frozenset[str], list[list[Write]]]:
    result: dict[frozenset[str], list[list[Write]]] = {}
    for writes in nodes:
        result.setdefault(frozenset().union(*(write.shares for write in writes)), []).append(writes)
    return result


def _reference(item: Pending) -> Object:
    namespace, _, name = item.claim.name.partition("/")
    claim = {"metadata": {"namespace": namespace, "name": name, "uid": item.claim.uid}}
    return reference(claim, "resource.k8s.io/v1", "ResourceClaim")
