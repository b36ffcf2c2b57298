"""Acts on a GPU that is short of memory: events on borrowers, and under `whenShort: Terminate` their end.

Guarantees: a borrower is ended through its MPS daemon, so that its neighbours go on, by the one place that ends clients
in order (`terminate.terminate`), and with an event before and after. Signals go only to processes whose contexts were
ended before, and that still hold their memory; to exactly the process that was read. GPUs do not hold up one another.
What is decided is in `borrowing`; a restarted agent knows of no notice that was given before, and gives it again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from signal import Signals

from gpushare.agent.observe.borrowers import BorrowerList, Place
from gpushare.agent.observe.borrowing import Act, Course, Policy, Shortage, ShortageStep, shortage, step
from gpushare.agent.observe.usage import ListedProcess, Reading
from gpushare.agent.observe.violations import describe
from gpushare.agent.process import signals
from gpushare.agent.process.processes import Identity, identity
from gpushare.agent.terminate.enforcement import Recorder
from gpushare.agent.terminate.terminate import ClientTerminator, TerminationCause
from gpushare.api.conditions import EventReason
from gpushare.api.duration import parse_duration
from gpushare.api.gpunode import Borrower, ShareName, Uuid
from gpushare.api.gpushare import Enforcement, GpuShare
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.events.event import Event, EventType, pod_reference
from gpushare.messages.log_on_change import LogOnChange
from gpushare.process.procfs import PROC

LOG = logging.getLogger(__name__)


def policies(shares: Iterable[GpuShare]) -> dict[ShareName, Policy]:
    """Of the shares whose clients may borrow."""
    return {
        share.name: Policy(limits.when_short is Enforcement.TERMINATE, float(parse_duration(limits.grace_period)))
        for share in shares
        if (limits := share.limits_memory) is not None
    }


class ShortageMonitor:
    def __init__(
        self,
        terminator: ClientTerminator,
        recorder: Recorder,
        clock: Callable[[], float],
        clear_seconds: float,
        apart_seconds: float,
        proc: Path = PROC,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `clear_seconds`: see BorrowerList. `apart_seconds`: a reading that was taken
        sooner after the one before is not judged.
        """
        self.latest: dict[Uuid, Shortage] = {}
        """What each GPU lacks or has to spare by its latest reading; of shares whose clients may borrow."""
        self._terminator = terminator
        self._recorder = recorder
        self._clock = clock
        self._clear_seconds = clear_seconds
        self._apart_seconds = apart_seconds
        self._proc = proc
        self._courses: dict[Uuid, Course] = {}
        self._read_at: dict[Uuid, float] = {}
        self._ends_at: dict[Uuid, tuple[Place, str]] = {}
        self._list: BorrowerList | None = None
        self._under_way: dict[Uuid, asyncio.Task[None]] = {}
        self._sent: set[tuple[Identity, Signals]] = set()
        self._problems = LogOnChange(LOG)

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
        """From new readings. `taken`: our GPUs and the share of each. `waiting_mib`: what containers without a client
        need to get in. `before`: the borrowers that the API holds; called once. Never waits: clients are ended in
        tasks.
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
        uuid, found = reading.uuid, shortage(reading, waiting_mib)
        if found is None:
            self.latest.pop(uuid, None)
            return
        self.latest[uuid] = found
        self._courses[uuid], due = step(self._courses.get(uuid, Course()), reading, found, policy)
        if due is None:
            return
        match due.act:
            case Act.NOTICE:
                self._notify(due, policy, now)
            case Act.OVER:
                self._withdraw(due)
            case Act.END | Act.SIGNAL:
                self._ends_at.pop(uuid, None)
                if uuid not in self._under_way:
                    name = f"shortage on {uuid}"
                    self._under_way[uuid] = asyncio.create_task(self._end(due), name=name)

    def _keep(self, lending: set[Uuid]) -> None:
        """Forgets every other GPU, as one that its share has given back, or whose share lets nobody borrow any more."""
        self._courses = {uuid: course for uuid, course in self._courses.items() if uuid in lending}
        self._ends_at = {uuid: end for uuid, end in self._ends_at.items() if uuid in lending}
        self._read_at = {uuid: at for uuid, at in self._read_at.items() if uuid in lending}
        self.latest = {uuid: found for uuid, found in self.latest.items() if uuid in lending}
        if self._list is not None:
            self._list.keep(lending)
        if not self._courses:
            self._sent.clear()

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

    async def _end(self, due: ShortageStep) -> None:
        uuid = due.usage.uuid
        try:
            problem = await (self._terminate(due) if due.act is Act.END else self._signal(due))
            if problem:
                text = "borrowers of memory of GPU %s are not ended yet, trying again: %s"
                self._problems.log(text, uuid, problem, key=uuid)
            else:
                self._problems.clear(uuid)
        finally:
            del self._under_way[uuid]

    async def _terminate(self, due: ShortageStep) -> str:
        """Returns the problem, if there was one."""
        usage = due.usage
        terminated, problem = await self._terminator.terminate(usage.uuid, due.processes, TerminationCause.SHORTAGE)
        for process in terminated:
            note = (
                f"Ended the CUDA contexts of process {process.pid} ({describe(usage)}) through the MPS daemon, as "
                f"GpuShare {usage.share} says (whenShort: Terminate): {due.shortage.of(usage.uuid)}, and "
                f"{_borrows(due)}. The other clients go on; the process gets CUDA error 810."
            )
            self._record(due, "Warning", EventReason.CLIENT_TERMINATED, "TerminateClient", note, process)
        return problem

    async def _signal(self, due: ShortageStep) -> str:
        """Returns the problem, if there was one."""
        for process in due.processes:
            key = identity(process), due.signal
            if key in self._sent:
                continue
            try:
                sent = signals.send(process, due.signal, self._proc)
            except OSError as error:
                return f"process {process.pid} cannot be signalled: {error.strerror or error}"
            self._sent.add(key)
            if sent:
                note = (
                    f"Sent {due.signal.name} to process {process.pid} ({describe(due.usage)}): its CUDA contexts were "
                    f"ended, and it still holds memory that GPU {due.usage.uuid} is short of (whenShort: Terminate)."
                )
                self._record(due, "Warning", EventReason.PROCESS_ENDED, "EndProcess", note, process)
        return ""

    def _record(
        self,
        due: ShortageStep,
        level: EventType,
        reason: EventReason,
        action: str,
        note: str,
        process: ListedProcess | None = None,
    ) -> None:
        usage = due.usage
        subject = usage.container if process is None else f"{process.pid}/{process.started}"
        pod = pod_reference(usage.namespace, usage.pod, usage.pod_uid)
        self._recorder.record(Event(pod, level, reason, action, note, subject, happened=True))


def _spare(due: ShortageStep) -> str:
    found = due.shortage
    return (
        f"GPU {due.usage.uuid} has {found.free_mib} MiB free for the {found.reserved_mib} MiB that its clients have "
        "reserved and do not use yet, or this container borrows no more"
    )


def _borrows(due: ShortageStep) -> str:
    usage = due.usage
    above = f"{due.mib} MiB above the {usage.grant.memory_mib if usage.grant else 0} MiB reserved for it"
    return f"container {usage.container} uses {usage.memory_mib} MiB, {above}"
