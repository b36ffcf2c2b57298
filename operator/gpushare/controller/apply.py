"""Sends the writes of one plan, for a bounded time; then the fleet is planned again.

A pass has phases (`phases`), and each lasts until all of its writes are answered or its time is over. A write that is
not answered by then goes on, and holds up nothing else: the next pass leaves out what it writes, and a phase counts
only its own writes. What a phase did not begin is left to the next plan, so a newer plan replaces it.

Guarantees: of each part of an object only one write is under way. A share gets its finalizer and its DaemonSet before
a node is asked for its pods or gets its GPUs. A write names the resourceVersion that was planned from; where the object
has changed since, the API server refuses the write (409), and the next plan decides anew. A write that fails is tried
again with back-off. Every answer goes into the cache at once, so that the next plan does not repeat the write before
its watch event arrives.
"""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gpushare.api.conditions import ShareReason
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.controller.events import FleetEvents
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.writes import Key, Note, Write, WriteStage
from gpushare.kube.client import API_ERRORS, CLAIM_TEMPLATES, Kube, KubeError, Resource
from gpushare.messages.refused_writes import RefusedWrite, refused_sentence

LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""Writes of a phase that are under way together: enough for a large fleet, too few to trouble an API server."""
BEFORE_STATUSES = 4 * AT_ONCE
"""So many writes to nodes are answered before the statuses that tell of them are sent. More would take too long."""
STATUS_TURN = 2
"""The turn of a status in a larger plan: after a label and an assignment."""
UNANSWERED_AT_MOST = 64
"""Writes under way in all, of `session.MAX_CONNECTIONS`, which lists and events need, too. When so many are, the API
server answers nobody, and nothing is begun until one ends."""
UNANSWERED_OF_KIND = 32
"""Writes under way to objects of one kind: more leave too few to others where an admission webhook is silent."""
WRITE_SECONDS = 30.0
"""The limit of one write, with the waits that a busy API server asks for."""
FIRST_BACKOFF = 1.0
CONFLICT_BACKOFF = 0.25
"""The first back-off after a conflict: the newer object is on its way to the cache."""
LAST_BACKOFF = 300.0
SHARES_TOLD = 3
"""Shares that get an event about one refused write."""
LAST_CONFLICT_BACKOFF = 16.0
"""An object that changes all the time is met between two changes by many attempts, not by long waits."""


class Applier:
    def __init__(
        self,
        kube: Kube,
        cache: FleetCache,
        events: FleetEvents,
        clock: Callable[[], float],
        meters: OperatorMeters,
        answered: Callable[[], None],
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        """`clock`: seconds, monotonic. `write_seconds`: the limit of one write.

        `answered` is called in the event loop when a write has ended that a plan depends on. Statuses that were written
        are none, unless a later plan was made meanwhile: the next one would find other counts to report, and so on.
        """
        self._kube = kube
        self._cache = cache
        self._events = events
        self._clock = clock
        self._meters = meters
        self._answered = answered
        self._write_seconds = write_seconds
        self._under_way: dict[Key, tuple[Write, asyncio.Task[None]]] = {}
        self._by_kind: Counter[Resource] = Counter()
        """How many writes are under way, by kind."""
        self._retries: dict[Key, tuple[float, float]] = {}
        """When a write that failed may be tried again, and its last back-off, both in seconds."""
        self._refused: dict[Key, tuple[Write, RefusedWrite]] = {}
        """The planned writes that the API server refuses."""
        self._without_finalizer: set[str] = set()
        """Shares of this pass that get nothing yet that somebody would have to take back."""
        self._without_daemon_set: set[str] = set()
        """Shares of this pass whose DaemonSet has no answer yet, not even a refusal: no node is asked for its pods."""
        self._began_at = clock()
        """When this pass began."""
        self._begun: set[Key] = set()
        """The writes under way when this pass began, and those begun since: no more is written there in this pass."""
        self._late: set[Key] = set()
        """Writes under way since an earlier pass. A later plan may want something else there, or what was there."""
        self._error: BaseException | None = None

    @property
    def unanswered(self) -> list[Write]:
        """The writes that are under way."""
        return [write for write, _ in self._under_way.values()]

    @property
    def refused(self) -> dict[str, tuple[RefusedWrite, ...]]:
        """By share, the writes that the API server refused more than once, without those of statuses, which could not
        be told there."""
        by_share: dict[str, list[RefusedWrite]] = {}
        for _, (write, refusal) in sorted(self._refused.items()):
            for share in write.about if write.stage is not WriteStage.REPORT else ():
                by_share.setdefault(share, []).append(refusal)
        return {share: tuple(refusals) for share, refusals in by_share.items()}

    def retry_seconds(self) -> float | None:
        """The time until a write that failed should be tried again; None: there is none.

        What was due when the pass began is under way, or waits for another write, which says when it has ended.
        """
        waiting = [when for when, _ in self._retries.values() if when > self._began_at]
        return max(0.0, min(waiting) - self._clock()) if waiting else None

    async def write(self, writes: Sequence[Write], seconds: float) -> bool:
        """One pass, of at most `seconds` for each phase. False: some writes were not begun for lack of time.

        Raises what ended a write, of this pass or an earlier one, and was no refusal.
        """
        self._began_at, self._begun = self._clock(), set(self._under_way)
        planned = {write.key for write in writes}
        self._retries = {key: retry for key, retry in self._retries.items() if key in planned}
        self._refused = {key: refusal for key, refusal in self._refused.items() if key in planned}
        self._without_finalizer = {share for hold in writes if hold.stage is WriteStage.HOLD for share in hold.shares}
        due = (run for run in writes if run.stage is WriteStage.RUN and self._is_due(run))
        self._without_daemon_set = {share for run in due for share in run.shares}
        self._late |= self._begun
        complete = True
        for phase in phases(writes):
            complete &= await self._write_phase(phase, seconds)
            if self._error is not None:
                raise self._error
        return complete

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_phase(self, writes: Iterable[Write], seconds: float) -> bool:
        """Returns whether all were begun that may be begun now."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        under_way: set[asyncio.Task[None]] = set()
        for write in writes:
            if not self._may_begin(write):
                continue
            if len(under_way) == AT_ONCE:
                _, under_way = await asyncio.wait(under_way, timeout=end - clock(), return_when=FIRST_COMPLETED)
            if clock() >= end:
                return False
            under_way.add(self._begin(write))
        if under_way:
            await asyncio.wait(under_way, timeout=end - clock())
        return True

    def _may_begin(self, write: Write) -> bool:
        if len(self._under_way) >= UNANSWERED_AT_MOST or self._by_kind[write.resource] >= UNANSWERED_OF_KIND:
            return False
        if write.key in self._begun or not self._is_due(write):
            return False
        if write.stage <= WriteStage.HOLD or write.stage is WriteStage.REPORT:
            return True
        if write.shares & self._without_finalizer:
            return False
        return write.stage is WriteStage.RUN or not write.shares & self._without_daemon_set

    def _is_due(self, write: Write) -> bool:
        when, _ = self._retries.get(write.key, (0.0, 0.0))
        return when <= self._began_at

    def _begin(self, write: Write) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._try(write), name=str(write))
        self._begun.add(write.key)
        self._under_way[write.key] = write, task
        self._by_kind[write.resource] += 1
        task.add_done_callback(lambda _: self._ended(write, task))
        return task

    def _ended(self, write: Write, task: "asyncio.Task[None]") -> None:
        del self._under_way[write.key]
        self._by_kind[write.resource] -= 1
        self._late.discard(write.key)
        if write.stage is WriteStage.RUN:
            self._without_daemon_set -= write.shares
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._answered()

    async def _try(self, write: Write) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._send(write)
        except API_ERRORS as error:
            self._failed(write, error)
        else:
            self._succeeded(write)

    async def _send(self, write: Write) -> None:
        match write.verb:
            case "apply":
                answer = await self._kube.apply(
                    write.resource,
                    write.name,
                    write.versioned_body,
                    manager=write.manager,
                    namespace=write.namespace,
                    subresource=write.subresource,
                )
                self._cache.applied(write.resource, answer)
            case "merge":
                answer = await self._kube.patch(
                    write.resource, write.name, write.versioned_body, manager=write.manager, namespace=write.namespace
                )
                self._cache.observe(write.resource, answer)
            case "json":
                answer = await self._kube.patch(
                    write.resource, write.name, list(write.operations), manager=write.manager, kind="json"
                )
                self._cache.applied(write.resource, answer)
            case "delete":
                await self._kube.delete(write.resource, write.name, namespace=write.namespace, uid=write.uid)

    def _succeeded(self, write: Write) -> None:
        LOG.info("%s", write)
        self._meters.wrote(write, "ok")
        self._refused.pop(write.key, None)
        if write.verb == "delete":
            self._put_off(write, FIRST_BACKOFF)  # its answer shows nothing: the plans until its event want it again
        else:
            self._retries.pop(write.key, None)
        if write.stage is WriteStage.HOLD:
            self._without_finalizer -= write.shares
        for note in write.notes:
            self._events.record(note)
        if write.stage is not WriteStage.REPORT or write.key in self._late:
            self._answered()

    def _failed(self, write: Write, error: Exception) -> None:
        conflict = isinstance(error, KubeError) and error.conflict
        first, most = (CONFLICT_BACKOFF, LAST_CONFLICT_BACKOFF) if conflict else (FIRST_BACKOFF, LAST_BACKOFF)
        pause = self._put_off(write, first, most, getattr(error, "retry_after", 0.0))
        LOG.log(logging.INFO if conflict else logging.WARNING, "%s failed, again in %.3g s: %s", write, pause, error)
        self._meters.wrote(write, "conflict" if conflict else "failed")
        lasts = pause >= LAST_CONFLICT_BACKOFF if conflict else pause > FIRST_BACKOFF
        if isinstance(error, KubeError) and lasts and error.refused:
            self._tell(write, error)
        self._answered()

    def _tell(self, write: Write, error: KubeError) -> None:
        """The next plan says it in the conditions of the shares that it is about; an event says it whenever it is tried
        again, also where no status is taken."""
        is_template = write.resource == CLAIM_TEMPLATES
        squatter = f"resourceclaimtemplate -n {write.namespace} {write.name}" if is_template else ""
        refusal = RefusedWrite(write.what, error.status, str(error), squatter)
        self._refused[write.key] = write, refusal
        for share in sorted(write.about)[:SHARES_TOLD]:
            text = refused_sentence(refusal)
            self._events.record(Note(share, "Warning", ShareReason.WRITE_REFUSED, "Apply", text))

    def _put_off(self, write: Write, first: float, most: float = LAST_BACKOFF, least: float = 0.0) -> float:
        """Returns the seconds until the write may be sent again: `first`, twice that each time, `most` at most."""
        _, last = self._retries.get(write.key, (0.0, first / 2))
        backoff = min(last * 2, most)
        pause = max(backoff, least)
        self._retries[write.key] = self._clock() + pause, backoff
        return pause


def phases(writes: Sequence[Write]) -> list[list[Write]]:
    """What is sent one after the other, each list in its order."""

    def of(*stages: WriteStage) -> list[Write]:
        return in_turns(write for write in writes if write.stage in stages)

    to_nodes = of(WriteStage.LABEL, WriteStage.ASSIGN, WriteStage.OPEN, WriteStage.REPLACE, WriteStage.STOP)
    statuses = of(WriteStage.REPORT, WriteStage.RELEASE)
    in_order = [to_nodes, statuses] if len(to_nodes) <= BEFORE_STATUSES else [in_turns(to_nodes, statuses)]
    return [of(WriteStage.CLOSE, WriteStage.HOLD), of(WriteStage.RUN), *in_order, of(WriteStage.REACH)]


def in_turns(writes: Iterable[Write], statuses: Iterable[Write] = ()) -> list[Write]:
    """The n-th write of each share comes before the next one of any, so a share of one node does not wait for one of
    many. Of a share, what is written to one node stays together; its status follows its first node.
    """
    turns: Counter[frozenset[str]] = Counter()
    placed = []
    for write in sorted(writes, key=lambda write: (write.name, write.stage)):
        placed.append((turns[write.shares], write))
        turns[write.shares] += 1
    placed += [(STATUS_TURN, status) for status in statuses]
    return [write for _, write in sorted(placed, key=lambda item: item[0])]
