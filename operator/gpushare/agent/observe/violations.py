"""Readings become findings: who uses a GPU beyond the grant, and since when.

A grant's memory is for the sum of a container's processes, contexts included. In doubt a client is within its grant:
figures that cannot be true together, for example, are no violation.

Guarantees: one reading alone makes no finding and names no process to be ended; a GPU without a new reading keeps its
findings; a finding keeps the figures that it was made with, so one that stands costs no write. All but `UsageMonitor`
is pure: times are handed in.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gpushare.agent.aio.blocking import HungError
from gpushare.agent.observe.identities import (
    contexts,
    forgery,
    lacks_library,
    never_attached,
    without_pages,
    without_place,
)
from gpushare.agent.observe.usage import (
    ListedProcess,
    Reading,
    Usage,
    newest_first,
)
from gpushare.agent.observe.usage_reader import UsageReader, UsageSources
from gpushare.agent.process.processes import Identity, identity
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import MAX_FINDINGS, Finding, ShareName, Uuid
from gpushare.api.timestamps import format_timestamp
from gpushare.grant.model import Grant
from gpushare.messages.log_on_change import LogOnChange
from gpushare.messages.wording import are, count_of
from gpushare.nvml.types import TOLERANCE_MIB

LOG = logging.getLogger(__name__)

NO_GRANT_SECONDS = 30.0
"""A pod deleted by force is gone from the API before the kubelet has ended its processes."""
UNKNOWN_SECONDS = 60.0
"""What cannot be read now may be read next time. That it could not be for so long is a finding, and excuses nobody."""
LISTED_SECONDS = 10.0
"""The lists of NVML and of the MPS server are of two moments, seconds apart."""
UNKNOWN_CONTAINER_SECONDS = 120.0
"""A pod's status shows a container a moment after it has started. A status that is too large for the API server never
does, so a container that it does not show is excused for this long, and not for ever.
"""

KEPT_SECONDS = 10.0
"""A process whose contexts were ended holds its memory until it exits (measured). So long after its end its container
may be above its grant by it; then it is signalled."""

_NO_LIBRARY = ". Where it started before the GPU's containers had the library for that, restart it"
Key = tuple[Uuid, ShareName, str, str, str, int]
"""A tuple of (GPU, share, reason, pod uid, container, PID where no pod is known): the same after an agent's restart."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`granted` and `observed`: MiB; for TOO_MANY_PROCESSES and TOO_MANY_CONTEXTS these; for CLIENT_NOT_LISTED,
    NEVER_ATTACHED, CLASS_NOT_TAKEN and COMPUTES_WITHOUT_PLACE processes.

    `to_end`: the processes to be ended under `enforcement: Terminate`, the newest first. Empty for processes of the
    host, of a pod without a slot, of one whose grant is only assumed or whose way to MPS is missing, and for processes
    that were terminated already. `clients_beside`: if `to_end` are no MPS clients, the MPS clients in their container.
    `keeping`: the processes that were terminated already and with whose memory the container is above its grant, the
    newest first; empty where `to_end` may not be ended. `cdi_on`: see Reading.
    """

    reason: EventReason
    usage: Usage
    granted: int
    observed: int
    to_end: tuple[ListedProcess, ...] = ()
    clients_beside: tuple[ListedProcess, ...] = ()
    keeping: tuple[ListedProcess, ...] = ()
    cdi_on: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmedViolation:
    """A finding that the latest reading confirms. `to_end`: those of the violation that two readings name.

    `to_signal`: those that have kept its memory for KEPT_SECONDS after their end. Then `to_end` are all others of the
    container: a signal that ends its main process would kill them in mid-kernel.
    """

    finding: Finding
    violation: Violation
    to_end: tuple[ListedProcess, ...]
    to_signal: tuple[ListedProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """`cleared`: findings that hold no more."""

    confirmed: tuple[ConfirmedViolation, ...]
    cleared: tuple[Finding, ...]


def violations(reading: Reading) -> list[Violation]:
    if reading.whole:
        strangers = (usage for usage in reading.usages if not usage.slot)
        return [Violation(EventReason.NOT_THE_HOLDER, usage, 0, usage.memory_mib) for usage in strangers]
    unreached = [_unreached(usage, reading) for usage in reading.without_mounts]
    return [violation for usage in reading.usages for violation in _judge(usage, reading)] + unreached


def message(violation: Violation) -> str:
    """Who uses what, and what was granted, as a sentence without its full stop."""
    usage = violation.usage
    who, gpu = describe(usage), f"GPU {usage.uuid} of GpuShare {usage.share}"
    match violation.reason:
        case EventReason.MEMORY_ABOVE_GRANT:
            together = count_of(len(usage.processes), "process") + (" together" if len(usage.processes) != 1 else "")
            return f"{who} uses {violation.observed} MiB on {gpu} ({together}), its grant is {violation.granted} MiB"
        case EventReason.TOO_MANY_PROCESSES:
            return (
                f"{who} has {count_of(violation.observed, 'CUDA process')} on {gpu}, its grant is {violation.granted}"
            )
        case EventReason.TOO_MANY_CONTEXTS:
            return (
                f"{who} has {count_of(violation.observed, 'CUDA context')} on {gpu}, and may have "
                f"{violation.granted}, so that others have room for theirs"
            )
        case EventReason.NEVER_ATTACHED:
            return (
                f"{count_of(violation.observed, 'process')} of {who} {are(violation.observed)} listed by the MPS "
                f"server of {gpu} and never attached: another process let them in"
            )
        case EventReason.CLASS_NOT_TAKEN:
            return (
                f"{who} is BestEffort, and {count_of(violation.observed, 'process')} of it on {gpu} never asked for a "
                f"class: such a process gives way to nobody{'' if violation.to_end else _NO_LIBRARY}"
            )
        case EventReason.COMPUTES_WITHOUT_PLACE:
            return (
                f"{who} has {count_of(violation.observed, 'process')} with CUDA contexts on {gpu} and no place there, "
                "while others wait for one: it did not wait"
            )
        case EventReason.CLIENT_NOT_LISTED:
            return (
                f"{who} has {count_of(violation.observed, 'process')} on {gpu} that the MPS server lists under another "
                "PID: who forges its PID can be neither counted nor ended in order"
            )
        case EventReason.NOT_AN_MPS_CLIENT:
            listed = ", ".join(str(pid) for pid in usage.pids[:8])
            return (
                f"{who} uses {violation.observed} MiB on {gpu} past MPS (PID {listed}), its grant is 0 MiB: no limit "
                f"binds it, and while it runs an MPS server may fail to start{_unless_known(usage)}"
            )
        case EventReason.CDI_EDITS_MISSING:
            blamed = "is CDI off in the node's container runtime?"
            why = "other containers of this node have theirs" if violation.cdi_on else blamed
            return (
                f"{who} holds a slot of {gpu}, but was started without the mounts that go with it, so it cannot reach "
                f"MPS and uses {violation.observed} MiB past it: {why}"
            )
        case EventReason.MOUNTS_UNKNOWN:
            return f"{who} holds a slot of {gpu} and cannot reach MPS as far as can be seen{_unless_known(usage)}"
        case EventReason.NOT_THE_HOLDER:
            return f"{who} uses {violation.observed} MiB on {gpu}, which another container or nobody has whole"
    why = "its pod's status does not show which one it is" if _is_unknown_container(usage) else "it holds no slot of it"
    return f"{who} is an MPS client on {gpu} with {violation.observed} MiB, its grant is 0 MiB: {why}"


def describe(usage: Usage) -> str:
    """Who uses the GPU, such as `container app of pod team/pod-1`."""
    if usage.pod:
        container = f"container {usage.container}" if usage.container else "an unknown container"
        return f"{container} of pod {usage.namespace}/{usage.pod}"
    pids = ", ".join(str(pid) for pid in usage.pids[:8])
    if usage.unknown and not usage.pod_uid:
        return f"process {pids}, whose pod is not known ({usage.unknown}),"
    if usage.pod_uid:
        return f"process {pids} of pod {usage.pod_uid}, which the API does not know,"
    return f"process {pids} of the host"


def _judge(usage: Usage, reading: Reading) -> Iterable[Violation]:
    if not usage.mps:
        yield _past_mps(usage, reading)
    elif not usage.slot:
        yield Violation(EventReason.NO_GRANT, usage, 0, usage.memory_mib)
    elif usage.grant is not None:
        yield from _above_grant(usage, usage.grant, reading.credible)
        yield from _by_the_server(usage, usage.grant, reading)


def _is_not_known(usage: Usage) -> bool:
    """Whether its pod, or how a container with a slot was started, could not be read."""
    return bool(usage.unknown) and (usage.slot or not usage.pod_uid)


def _unless_known(usage: Usage) -> str:
    if not usage.slot or not usage.unknown:
        return ""
    return f"; whether its container was started with the mounts of its slot is not known: {usage.unknown}"


def _unreached(usage: Usage, reading: Reading) -> Violation:
    if usage.unknown:
        return Violation(EventReason.MOUNTS_UNKNOWN, usage, 0, 0)
    return Violation(EventReason.CDI_EDITS_MISSING, usage, 0, 0, cdi_on=reading.cdi_on)


def _is_unknown_container(usage: Usage) -> bool:
    return bool(usage.pod) and not usage.container


def _patience(violation: Violation) -> float:
    """Seconds that it has to last before it is a finding."""
    if _is_not_known(violation.usage):
        return UNKNOWN_SECONDS
    if violation.reason is EventReason.CLIENT_NOT_LISTED:
        return LISTED_SECONDS
    if violation.reason not in (EventReason.NO_GRANT, EventReason.NOT_THE_HOLDER):
        return 0.0
    return UNKNOWN_CONTAINER_SECONDS if _is_unknown_container(violation.usage) else NO_GRANT_SECONDS


def _past_mps(usage: Usage, reading: Reading) -> Violation:
    if not usage.slot:
        return Violation(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib)
    if all(process.unmounted for process in usage.processes):
        return Violation(EventReason.CDI_EDITS_MISSING, usage, 0, usage.memory_mib, cdi_on=reading.cdi_on)
    clients = [other for other in reading.usages if other.mps and other.place == usage.place]
    beside = tuple(process for other in clients for process in other.living)
    to_end = newest_first(usage.processes)
    return Violation(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib, to_end, beside)


def _by_the_server(usage: Usage, grant: Grant, reading: Reading) -> Iterable[Violation]:
    """What the list of the MPS server shows. `to_end`: all of the container, as above its grant; of a forgery, those
    who forged, once the contexts that the daemon knows of are ended.
    """
    living = () if usage.by_default else usage.living
    if strangers := never_attached(usage, reading):
        yield Violation(EventReason.NEVER_ATTACHED, usage, grant.processes, len(strangers), living)
    if silent := without_pages(usage, reading):
        blamed = living if not lacks_library(silent, reading) else ()
        yield Violation(EventReason.CLASS_NOT_TAKEN, usage, 0, len(silent), blamed)
    if intruders := without_place(usage, reading):
        yield Violation(EventReason.COMPUTES_WITHOUT_PLACE, usage, 0, len(intruders), living)
    made = contexts(usage, reading)
    if usage.most_contexts and made > usage.most_contexts:
        yield Violation(EventReason.TOO_MANY_CONTEXTS, usage, usage.most_contexts, made, living)
    forged = forgery(usage, reading)
    if forged is not None:
        hidden = () if usage.by_default else forged.hidden
        beside = (*forged.named, *(process for process in living if process not in hidden))
        yield Violation(EventReason.CLIENT_NOT_LISTED, usage, 0, len(forged.hidden), hidden, beside)


def _above_grant(usage: Usage, grant: Grant, credible: bool) -> Iterable[Violation]:
    living = usage.living
    # All processes of the container: one that is ended alone may, as the main process, exit or stop its siblings. That
    # would cut off their kernels, and so end the neighbours.
    to_end = () if usage.by_default else living
    if len(living) > grant.processes:
        yield Violation(EventReason.TOO_MANY_PROCESSES, usage, grant.processes, len(living), to_end)
    if credible and usage.memory_mib > grant.limit_mib + TOLERANCE_MIB * len(usage.processes):
        ended = newest_first(process for process in usage.processes if process.terminated)
        keeping = () if usage.by_default else ended
        yield Violation(
            EventReason.MEMORY_ABOVE_GRANT, usage, grant.limit_mib, usage.memory_mib, to_end, keeping=keeping
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """`first` and `last`: when its readings were taken. `finding` None: not confirmed yet. `kept_since`: the first of
    the readings in a row in which processes keep memory after their end; None: none does.
    """

    first: float
    last: float
    to_end: frozenset[Identity]
    finding: Finding | None = None
    kept_since: float | None = None


class ViolationTracker:
    """Violations that last become findings; findings whose violation has ended are cleared."""

    def __init__(self, before: Sequence[Finding], now: float, clear_seconds: float, apart_seconds: float = 0.0) -> None:
        """`before`: the findings of an earlier agent; they are cleared like any other. `now`: on the clock of
        `taken_at`. `clear_seconds`: a finding is cleared when its violation was not seen for so long. `apart_seconds`:
        a reading that was taken sooner after the one before is not judged: two that name a process to be ended must
        not show the same moment, such as the one in which a process takes over from another.
        """
        self._cases = {key_of(finding): _Case(now, now, frozenset(), finding) for finding in before}
        self._clear_seconds = clear_seconds
        self._apart_seconds = apart_seconds
        self._read_at: dict[Uuid, float] = {}

    def judge(self, readings: Iterable[Reading], taken: Mapping[Uuid, ShareName], wall: str) -> Judgement:
        """Takes new readings. `wall`: RFC 3339, for findings made now.

        `taken`: our GPUs and the share of each. Findings of other GPUs are cleared, also those of a share that had the
        GPU before.
        """
        before = self._cases
        self._cases = {key: case for key, case in before.items() if taken.get(key[0]) == key[1]}
        confirmed = tuple(
            item for reading in readings if self._is_apart(reading) for item in self._judge(reading, wall)
        )
        cleared = tuple(case.finding for key, case in before.items() if case.finding and key not in self._cases)
        return Judgement(confirmed, cleared)

    def _is_apart(self, reading: Reading) -> bool:
        before = self._read_at.get(reading.uuid)
        return before is None or reading.taken_at - before >= self._apart_seconds

    def findings(self) -> list[Finding]:
        """The findings for the node's status, in an order that does not change while they stand."""
        confirmed = [case.finding for case in self._cases.values() if case.finding is not None]
        return sorted(confirmed, key=lambda finding: (finding.since, *key_of(finding)))[:MAX_FINDINGS]

    def _judge(self, reading: Reading, wall: str) -> Iterable[ConfirmedViolation]:
        previous = self._read_at.get(reading.uuid)
        self._read_at[reading.uuid] = reading.taken_at
        seen: set[Key] = set()
        for violation in violations(reading):
            key = _key(violation)
            if key in seen:
                continue
            seen.add(key)
            confirmed = self._confirm(key, violation, previous, reading.taken_at, wall)
            if confirmed is not None:
                yield confirmed
        self._clear(reading, seen)

    def _confirm(
        self, key: Key, violation: Violation, previous: float | None, now: float, wall: str
    ) -> ConfirmedViolation | None:
        known = self._cases.get(key)
        lasting = known is not None and known.last == previous
        named = frozenset(identity(process) for process in violation.to_end)
        named_before = known.to_end if known is not None and lasting else frozenset()
        first = known.first if known is not None and lasting else now
        finding = known.finding if known is not None else None
        if finding is None and lasting and now - first >= _patience(violation):
            finding = _finding(violation, wall)
        if finding is not None and any(process.terminated for process in violation.usage.processes):
            finding = finding.model_copy(update={"ended": True})
        kept_before = known.kept_since if known is not None and lasting else None
        kept_since = (now if kept_before is None else kept_before) if violation.keeping else None
        self._cases[key] = _Case(first, now, named, finding, kept_since)
        if finding is None:
            return None
        if kept_since is not None and now - kept_since >= KEPT_SECONDS:
            return ConfirmedViolation(finding, violation, violation.to_end, violation.keeping)
        to_end = tuple(process for process in violation.to_end if identity(process) in named_before)
        return ConfirmedViolation(finding, violation, to_end)

    def _clear(self, reading: Reading, seen: set[Key]) -> None:
        def stays(key: Key, case: _Case) -> bool:
            if key[0] != reading.uuid or key in seen:
                return True
            return case.finding is not None and reading.taken_at - case.last < self._clear_seconds

        self._cases = {key: case for key, case in self._cases.items() if stays(key, case)}


def key_of(finding: Finding) -> Key:
    pid = 0 if finding.pod_uid else finding.pid
    return finding.uuid, finding.share, finding.reason, finding.pod_uid, finding.container, pid


def _key(violation: Violation) -> Key:
    usage = violation.usage
    pid = 0 if usage.pod_uid else usage.pids[0]
    return usage.uuid, usage.share, str(violation.reason), usage.pod_uid, usage.container, pid


def _finding(violation: Violation, wall: str) -> Finding:
    usage = violation.usage
    first = violation.to_end[0].pid if violation.to_end else usage.pids[0]
    return Finding(
        uuid=usage.uuid,
        share=usage.share,
        reason=violation.reason,
        namespace=usage.namespace,
        pod=usage.pod,
        pod_uid=usage.pod_uid,
        container=usage.container,
        pid=first,
        granted=violation.granted,
        observed=violation.observed,
        message=message(violation)[:1024],
        since=wall,
    )


class Enforcer(Protocol):
    """Acts on a judgement; see enforcement.ViolationEnforcer."""

    def was_terminated(self, uuid: Uuid, process: ListedProcess) -> bool:
        """Whether the contexts of a process were ended through its GPU's MPS daemon."""
        ...

    def enforce(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        """`terminating`: the shares with `enforcement: Terminate`. Never waits."""
        ...


class UsageMonitor:
    """One turn of the agent's loop: read, judge, enforce."""

    def __init__(
        self,
        clock: Callable[[], float],
        enforcer: Enforcer,
        proc: Path,
        clear_seconds: float,
        apart_seconds: float = 0.0,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `clear_seconds`, `apart_seconds`: see ViolationTracker."""
        self._clock = clock
        self._enforcer = enforcer
        self._clear_seconds = clear_seconds
        self._apart_seconds = apart_seconds
        self._reader = UsageReader(clock, enforcer.was_terminated, proc)
        self._tracker: ViolationTracker | None = None
        self._problems = LogOnChange(LOG)

    @property
    def readings(self) -> dict[Uuid, Reading]:
        return self._reader.readings

    def pre_stop_mounted(self) -> bool | None:
        """See MountChecker.pre_stop_mounted."""
        return self._reader.pre_stop_mounted()

    def findings(self) -> list[Finding] | None:
        """None: the findings of an earlier agent are not known yet, so they stay."""
        return None if self._tracker is None else self._tracker.findings()

    async def observe(self, sources: UsageSources, before: Callable[[], Sequence[Finding]]) -> list[Reading]:
        """The new readings. `before`: the findings that the API holds; called once."""
        if self._tracker is None:
            self._tracker = ViolationTracker(before(), self._clock(), self._clear_seconds, self._apart_seconds)
        try:
            readings = await self._reader.read(sources)
        except (HungError, OSError) as error:
            self._problems.log("the processes on the GPUs are not known: %s", error)
            return []
        self._problems.clear()
        wall = format_timestamp(datetime.now(UTC))
        judgement = self._tracker.judge(readings, {uuid: gpu.share for uuid, gpu in sources.taken.items()}, wall)
        self._enforcer.enforce(judgement, [share.name for share in sources.shares.values() if share.terminates])
        return readings
