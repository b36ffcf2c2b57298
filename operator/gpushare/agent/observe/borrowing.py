"""Who borrows GPU memory, whom the API shows, whether the GPU is short of it, and which borrower goes. Pure: times are
handed in.

A container borrows when it uses more than is reserved for it, which its limit allows. MPS enforces limits and reserves
nothing: a client within its reservation may be refused memory that others have borrowed. So a GPU is short when NVML
shows less free memory than its clients have reserved and do not use. A container without a client counts with one CUDA
context, so that it gets in; what is reserved for it counts from then on.

Borrowers go in the order of the kubelet's node-pressure eviction among pods above their requests: the lowest priority
first, of the same priority the one that borrows most.

Guarantees: one reading alone gives no notice and ends no client; no client is ended without notice, or before the grace
period is over. Of each GPU one borrower at a time has notice; another one gets it only once
the memory of the one before is back, or RETURN_SECONDS after its end. Who uses no more than is reserved for it is never
named, nor one whose grant is only assumed. Figures that cannot be true together count for nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from signal import Signals

from gpushare.agent.observe.usage import (
    ListedProcess,
    Reading,
    Usage,
    newest_first,
)
from gpushare.agent.process.processes import Identity, identity
from gpushare.api.gpunode import MAX_BORROWERS, Borrower, Uuid
from gpushare.nvml.types import TOLERANCE_MIB

LINGER_SECONDS = 10.0
"""A process whose contexts were ended holds its memory until it exits (measured). After so long it gets SIGTERM, and
after as long again SIGKILL: neither harms its neighbours, since no kernel of it runs any more."""
RETURN_SECONDS = 60.0
"""The time that the memory of an ended borrower has to come back."""

Key = tuple[str, str]
"""A pair of (pod uid, the runtime's id of the container): a container that starts again is another borrower."""
Place = tuple[Uuid, str, str]
"""A triple of (GPU, pod uid, container): the same after a restart of the agent."""


@dataclass(frozen=True, slots=True)
class Borrowing:
    """A container that uses `mib` more than is reserved for it."""

    usage: Usage
    mib: int

    @property
    def key(self) -> Key:
        return key_of(self.usage)


@dataclass(frozen=True, slots=True)
class Shortage:
    """`free_mib`: that nobody has allocated. `reserved_mib`: that clients have reserved and do not use."""

    free_mib: int
    reserved_mib: int

    @property
    def mib(self) -> int:
        """What the GPU lacks; below 0: what it has to spare."""
        return self.reserved_mib - self.free_mib

    def of(self, uuid: Uuid) -> str:
        """A clause for events and conditions."""
        unused = f"its clients have {self.reserved_mib} MiB reserved that they do not use yet"
        return f"GPU {uuid} has {self.free_mib} MiB free, and {unused}"


class Act(StrEnum):
    NOTICE = "Notice"
    OVER = "Over"
    """The notice is withdrawn."""
    END = "End"
    """`processes` are ended through the MPS daemon."""
    SIGNAL = "Signal"
    """`processes`, which were ended, still hold their memory."""


@dataclass(frozen=True, slots=True)
class ShortageStep:
    """What is done about a borrower now. `ends`: whether it is to be ended; False: it is told only."""

    act: Act
    usage: Usage
    mib: int
    shortage: Shortage
    ends: bool
    processes: tuple[ListedProcess, ...] = ()
    signal: Signals = Signals.SIGTERM


@dataclass(frozen=True, slots=True)
class Notice:
    """`at`: CLOCK_BOOTTIME seconds."""

    borrowing: Borrowing
    at: float
    ends: bool


@dataclass(frozen=True, slots=True)
class BorrowerEnding:
    """A borrower that is being ended since `at`, with its processes of then."""

    borrowing: Borrowing
    processes: frozenset[Identity]
    at: float


@dataclass(frozen=True, slots=True)
class Course:
    """What one GPU came to by earlier readings. `short`: by two in a row; None: it is not. `shown`: whether the latest
    reading alone shows a shortage. `borrowed`: who borrowed in it.
    """

    short: Shortage | None = None
    shown: bool = False
    borrowed: frozenset[Key] = frozenset()
    notice: Notice | None = None
    ending: BorrowerEnding | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the GPU's share says. `terminates`: borrowers are ended when it is short. `grace`: seconds of notice."""

    terminates: bool
    grace: float


def key_of(usage: Usage) -> Key:
    return usage.pod_uid, usage.container_id


def borrowings(reading: Reading) -> tuple[Borrowing, ...]:
    """Who borrows, in the order in which they go."""
    if not reading.credible:
        return ()
    borrowers = [Borrowing(usage, mib) for usage in reading.usages if (mib := _borrowed_mib(usage))]
    return tuple(sorted(borrowers, key=lambda item: (item.usage.priority, -item.mib, item.key)))


def shortage(reading: Reading, waiting_mib: int) -> Shortage | None:
    """What the GPU lacks; None: it is not known. `waiting_mib`: what containers without a client need to get in."""
    if reading.free_mib is None or not reading.credible:
        return None
    unused = (
        max(0, usage.grant.memory_mib - usage.memory_mib)
        for usage in reading.usages
        if usage.mps and usage.slot and usage.grant is not None and usage.living
    )
    return Shortage(reading.free_mib, sum(unused) + waiting_mib)


def step(course: Course, reading: Reading, lack: Shortage | None, policy: Policy) -> tuple[Course, ShortageStep | None]:
    """Judges one more reading. `lack`: its shortage; None: not known, and nothing changes.

    A shortage begins where more is lacking than figures may be wrong by, and ends where nothing is.
    """
    if lack is None:
        return course, None
    shown = lack.mib > (TOLERANCE_MIB if course.short is None else 0)
    twice = shown == course.shown
    short = (course.short or lack) if (shown if twice else course.short) else None
    before, listed = course.borrowed, borrowings(reading)
    course = replace(course, short=short, shown=shown, borrowed=frozenset(item.key for item in listed))
    if short is None:
        return replace(course, notice=None, ending=None), _over(course, lack)
    if not (shown and twice):
        return course, None
    if course.ending is not None:
        left = _left(course.ending, reading)
        if left and reading.taken_at - course.ending.at < RETURN_SECONDS:
            return course, _follow_up(course.ending, left, reading, lack)
        course = replace(course, ending=None)
    candidates = [item for item in listed if item.key in before and item.usage.living and not item.usage.by_default]
    return _next(course, candidates, reading.taken_at, lack, policy)


def _next(
    course: Course, candidates: Sequence[Borrowing], now: float, lack: Shortage, policy: Policy
) -> tuple[Course, ShortageStep | None]:
    """The GPU is short, and nobody is being ended. `candidates`: who borrows by two readings, in order."""
    notice = course.notice
    noticed = next((item for item in candidates if notice is not None and item.key == notice.borrowing.key), None)
    if notice is not None and noticed is None:
        return replace(course, notice=None), _over(course, lack)
    if notice is None or noticed is None or notice.ends != policy.terminates:
        first = noticed or next(iter(candidates), None)
        if first is None:
            return course, None
        given = Notice(first, now, policy.terminates)
        return replace(course, notice=given), ShortageStep(Act.NOTICE, first.usage, first.mib, lack, policy.terminates)
    if not policy.terminates or now - notice.at < policy.grace:
        return course, None
    processes = noticed.usage.living
    ending = BorrowerEnding(noticed, frozenset(map(identity, processes)), now)
    end = ShortageStep(Act.END, noticed.usage, noticed.mib, lack, True, processes)
    return replace(course, notice=None, ending=ending), end


def _over(course: Course, lack: Shortage) -> ShortageStep | None:
    if course.notice is None:
        return None
    noticed = course.notice.borrowing
    return ShortageStep(Act.OVER, noticed.usage, noticed.mib, lack, course.notice.ends)


def _left(ending: BorrowerEnding, reading: Reading) -> tuple[ListedProcess, ...]:
    """The processes of the ended borrower that still hold memory."""
    held = [usage for usage in reading.usages if key_of(usage) == ending.borrowing.key]
    return newest_first(
        process for usage in held for process in usage.processes if identity(process) in ending.processes
    )


def _follow_up(
    ending: BorrowerEnding, left: tuple[ListedProcess, ...], reading: Reading, lack: Shortage
) -> ShortageStep | None:
    noticed, seconds = ending.borrowing, reading.taken_at - ending.at
    asked = ShortageStep(Act.END, noticed.usage, noticed.mib, lack, True)
    if living := tuple(process for process in left if not process.terminated):
        return replace(asked, processes=living)  # the MPS daemon has not been reached yet
    beside = [usage for usage in reading.usages if key_of(usage) == noticed.key and usage.living]
    if beside or seconds < LINGER_SECONDS:
        return None  # the end of its main process would cut off the kernels of those beside it
    number = Signals.SIGTERM if seconds < 2 * LINGER_SECONDS else Signals.SIGKILL
    return replace(asked, act=Act.SIGNAL, processes=left, signal=number)


def _borrowed_mib(usage: Usage) -> int:
    """0: it does not borrow. Above its limit it is a violation, and borrows all the same."""
    grant = usage.grant
    if grant is None or not grant.burst_mib or not (usage.mps and usage.slot):
        return 0
    above = usage.memory_mib - grant.memory_mib
    return above if above > TOLERANCE_MIB * len(usage.processes) else 0


@dataclass(frozen=True, slots=True)
class _Sighting:
    """`last`: when the reading was taken that showed it last. `confirmed` None: one reading alone shows it."""

    last: float
    confirmed: Borrower | None


class BorrowerList:
    """Which borrowers the API shows, and since when.

    Guarantees: one reading alone lists no borrower; a GPU without a new reading keeps its borrowers; a container that
    goes on borrowing keeps the figures that it was listed with, so a borrower that stays costs no write.
    """

    def __init__(self, before: Sequence[Borrower], now: float, clear_seconds: float) -> None:
        """`before`: those of an earlier agent. `now`: on the clock of `taken_at`. `clear_seconds`: one that was not
        seen to borrow for so long is no borrower any more.
        """
        self._cases = {(listed.uuid, listed.pod_uid, listed.container): _Sighting(now, listed) for listed in before}
        self._clear_seconds = clear_seconds

    def update(self, reading: Reading, wall: str) -> None:
        """Takes a new reading. `wall`: RFC 3339, for borrowers that it confirms."""
        uuid, now = reading.uuid, reading.taken_at
        seen = {}
        for borrowing in borrowings(reading):
            place = (uuid, borrowing.usage.pod_uid, borrowing.usage.container)
            known = self._cases.get(place)
            confirmed = known.confirmed if known is not None else None
            if confirmed is None and known is not None:  # it is known from the reading before
                confirmed = _borrower(borrowing, wall)
            seen[place] = _Sighting(now, confirmed)
        kept = {
            place: case
            for place, case in self._cases.items()
            if place[0] != uuid or (case.confirmed is not None and now - case.last < self._clear_seconds)
        }
        self._cases = kept | seen

    def keep(self, taken: Collection[Uuid]) -> None:
        """Forgets those of other GPUs."""
        self._cases = {place: case for place, case in self._cases.items() if place[0] in taken}

    def listed(self, ends_at: Mapping[Place, str]) -> list[Borrower]:
        """The borrowers for the status, in the order in which they go. `ends_at`: when those with notice are ended."""
        confirmed = [
            case.confirmed.model_copy(update={"ends_at": ends_at.get(place)})
            for place, case in self._cases.items()
            if case.confirmed is not None
        ]
        return sorted(confirmed, key=_order)[:MAX_BORROWERS]


def _order(borrower: Borrower) -> tuple[object, ...]:
    return (
        borrower.priority,
        borrower.reserved_mib - borrower.observed_mib,
        borrower.uuid,
        borrower.namespace,
        borrower.pod,
        borrower.container,
    )


def _borrower(borrowing: Borrowing, wall: str) -> Borrower:
    usage, grant = borrowing.usage, borrowing.usage.grant
    return Borrower(
        uuid=usage.uuid,
        share=usage.share,
        namespace=usage.namespace,
        pod=usage.pod,
        pod_uid=usage.pod_uid,
        container=usage.container,
        priority=usage.priority,
        reserved_mib=grant.memory_mib if grant is not None else 0,
        limit_mib=grant.limit_mib if grant is not None else 0,
        observed_mib=usage.memory_mib,
        since=wall,
    )
