"""Who borrows GPU memory, whether its GPU is short of it, and which borrower goes. Pure: times are handed in.

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

from collections.abc import Sequence
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
from gpushare.api.gpunode import Uuid
from gpushare.nvml.types import TOLERANCE_MIB

LINGER_SECONDS = 10.0
"""A process whose contexts were ended holds its memory until it exits (measured). After so long it gets SIGTERM, and
after as long again SIGKILL: neither harms its neighbours, since no kernel of it runs any more."""
RETURN_SECONDS = 60.0
"""The time that the memory of an ended borrower has to come back."""

Key = tuple[str, str]
"""A pair of (pod uid, the runtime's id of the container): a container that starts again is another borrower."""


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
