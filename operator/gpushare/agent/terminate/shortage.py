"""Acts on a GPU that is short of memory: events on borrowers, and under `whenShort: Terminate` their end.

Guarantees: a borrower is ended through its MPS daemon, so that its neighbours go on, and with an event before and
after. Signals go only to processes whose contexts were ended before, and that still hold their memory.
What is decided is in `borrowing`; a restarted agent knows of no notice that was given before, and gives it again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from gpushare.agent.observe.borrowing import (
    Act,
    BorrowerList,
    Course,
    Place,
    Policy,
    Shortage,
    ShortageStep,
    shortage,
    step,
)
from gpushare.agent.observe.usage import Reading
from gpushare.agent.observe.violations import describe
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Borrower, ShareName, Uuid
from gpushare.api.gpushare import Enforcement, GpuShare
from gpushare.api.quantity import parse_duration
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, EventType, pod_reference
from gpushare.kube.events.recorder import EventRecorder


def policies(shares: Iterable[GpuShare]) -> dict[ShareName, Policy]:
    """The policies of the shares whose clients may borrow."""
    return {
        share.name: Policy(limits.when_short is Enforcement.TERMINATE, float(parse_duration(limits.grace_period)))
        for share in shares
        if (limits := share.limits_memory) is not None
    }


def shortage_requests(due: ShortageStep) -> list[TerminationRequest]:
    """Pure. The ends, or the signals, of a step that is Act.END or Act.SIGNAL."""
    usage, signal = due.usage, due.signal if due.act is Act.SIGNAL else None
    if signal is None:
        why = (
            f" through the MPS daemon, as GpuShare {usage.share} says (whenShort: Terminate): "
            f"{due.shortage.of(usage.uuid)}, and {_borrows(due)}. The other clients go on; the process gets CUDA error "
            "810."
        )
    else:
        why = (
            f": its CUDA contexts were ended, and it still holds memory that GPU {usage.uuid} is short of (whenShort: "
            "Terminate)."
        )
    reason, who = TerminationReason.SHORTAGE, f" ({describe(usage)})"
    return [
        TerminationRequest(reason, usage.uuid, process, _pod(due), who, why, signal=signal) for process in due.processes
    ]


class ShortageMonitor:
    def __init__(
        self,
        executor: TerminationExecutor,
        recorder: EventRecorder,
        clock: Callable[[], float],
        clear_seconds: float,
        apart_seconds: float,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `clear_seconds`: see BorrowerList. `apart_seconds`: a reading that was taken
        sooner after the one before is not judged.
        """
        self.latest: dict[Uuid, Shortage] = {}
        """What each GPU lacks or has to spare by its latest reading; of shares whose clients may borrow."""
        self._executor = executor
        self._recorder = recorder
        self._clock = clock
        self._clear_seconds = clear_seconds
        self._apart_seconds = apart_seconds
        self._courses: dict[Uuid, Course] = {}
        self._read_at: dict[Uuid, float] = {}
        self._ends_at: dict[Uuid, tuple[Place, str]] = {}
        self._list: BorrowerList | None = None

    def borrowers(self) -> list[Borrower] | None:
        """None: those of an earlier agent are not known yet, so they stay."""
        return None if self._list is None else self._list.listed(dict(self._ends_at.values()))

    def short(self) -> dict[Uuid, Shortage]:
        """The GPUs that are short of memory, with the figures that were found first."""
        return {uuid: course.short for uuid, course in self._courses.items() if course.short is not None}

    def observe(
        self,
        readings: Iterable[Reading],
        taken: Mapping[Uuid, ShareName],
        waiting_mib: Mapping[Uuid, int],
        shares: Mapping[ShareName, GpuShare],
        before: Callable[[], Sequence[Borrower]],
        now: datetime,
    ) -> None:
        """Takes new readings. `taken`: our GPUs and the share of each. `waiting_mib`: what containers without a client
        need to get in. `before`: the borrowers that the API holds; called once. Never waits.
        """
        if self._list is None:
            self._list = BorrowerList(before(), self._clock(), self._clear_seconds)
        by_share = policies(shares.values())
        lending = {uuid for uuid, share in taken.items() if share in by_share}
        self._keep(lending)
        for reading in readings:
            policy = by_share.get(reading.share)
            if policy is None or reading.uuid not in lending or not self._is_apart(reading):
                continue
            self._read_at[reading.uuid] = reading.taken_at
            self._list.update(reading, format_timestamp(now))
            self._judge(reading, waiting_mib.get(reading.uuid, 0), policy, now)

    def _judge(self, reading: Reading, waiting_mib: int, policy: Policy, now: datetime) -> None:
        uuid, lack = reading.uuid, shortage(reading, waiting_mib)
        if lack is None:
            self.latest.pop(uuid, None)
            return
        self.latest[uuid] = lack
        self._courses[uuid], due = step(self._courses.get(uuid, Course()), reading, lack, policy)
        if due is None:
            return
        match due.act:
            case Act.NOTICE:
                self._notify(due, policy, now)
            case Act.OVER:
                self._withdraw(due)
            case Act.END | Act.SIGNAL:
                self._ends_at.pop(uuid, None)
                self._executor.submit(shortage_requests(due))

    def _keep(self, lending: set[Uuid]) -> None:
        """Forgets every other GPU, as one that its share has given back, or whose share lets nobody borrow any more."""
        self._courses = {uuid: course for uuid, course in self._courses.items() if uuid in lending}
        self._ends_at = {uuid: end for uuid, end in self._ends_at.items() if uuid in lending}
        self._read_at = {uuid: at for uuid, at in self._read_at.items() if uuid in lending}
        self.latest = {uuid: lack for uuid, lack in self.latest.items() if uuid in lending}
        if self._list is not None:
            self._list.keep(lending)

    def _is_apart(self, reading: Reading) -> bool:
        before = self._read_at.get(reading.uuid)
        return before is None or reading.taken_at - before >= self._apart_seconds

    def _notify(self, due: ShortageStep, policy: Policy, now: datetime) -> None:
        usage = due.usage
        if due.ends:
            at = format_timestamp(now + timedelta(seconds=policy.grace))
            self._ends_at[usage.uuid] = (usage.uuid, usage.pod_uid, usage.container), at
            follows = (
                f"It is the first to go: unless memory comes back, its CUDA contexts are ended in {policy.grace:.0f} s,"
                f" at {at} (whenShort: Terminate). Let it free {due.mib} MiB, or start anew with less."
            )
        else:
            self._ends_at.pop(usage.uuid, None)
            follows = "Nobody is ended (whenShort: Audit); allocations of its neighbours may fail."
        note = f"{due.shortage.of(due.usage.uuid)}, and {_borrows(due)}. {follows}"
        self._record(due, "Warning", EventReason.MEMORY_SHORT, "GiveNotice", note)

    def _withdraw(self, due: ShortageStep) -> None:
        self._ends_at.pop(due.usage.uuid, None)
        withdrawn = ": the notice is withdrawn" if due.ends else ""
        self._record(due, "Normal", EventReason.MEMORY_SUFFICIENT, "WithdrawNotice", f"{_spare(due)}{withdrawn}.")

    def _record(
        self,
        due: ShortageStep,
        level: EventType,
        reason: EventReason,
        action: str,
        note: str,
    ) -> None:
        self._recorder.record(Event(_pod(due), level, reason, action, note, due.usage.container, happened=True))


def _pod(due: ShortageStep) -> Object:
    return pod_reference(due.usage.namespace, due.usage.pod, due.usage.pod_uid)


def _spare(due: ShortageStep) -> str:
    lack = due.shortage
    return (
        f"GPU {due.usage.uuid} has {lack.free_mib} MiB free for the {lack.reserved_mib} MiB that its clients have "
        "reserved and do not use yet, or this container borrows no more"
    )


def _borrows(due: ShortageStep) -> str:
    usage = due.usage
    above = f"{due.mib} MiB above the {usage.grant.memory_mib if usage.grant else 0} MiB reserved for it"
    return f"container {usage.container} uses {usage.memory_mib} MiB, {above}"
