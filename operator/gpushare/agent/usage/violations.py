"""Offences become findings when they last, and findings go when the offence is gone. Pure: times are handed in.

Guarantees: nothing is told, and nobody named as to be ended, by one reading alone; a GPU of which there is no new
reading keeps its findings as they are; a finding keeps the figures it was made with, so one that stands costs no write.

Granted against observed: who uses a GPU otherwise than granted, by one reading. Pure.

A grant's memory is for the sum of a container's processes, contexts included. Doubt is in the client's favour: what
cannot be told for certain, such as figures that cannot be true together, is no offence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.agent.usage.usage import Listed, Reading, Usage
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import MAX_FINDINGS, Finding, ShareName, Uuid
from gpushare.grant.model import Grant

TOLERANCE_MIB = 128
"""For each process. MPS counts a context at 145 MiB (4 GiB limit, 25 % of the threads, H200) that NVML showed with 148
to 218 MiB, by the kernels loaded; memory comes in pages of 2 MiB, and NVML's figure is cut to whole MiB here. So one
that keeps to its limit may show 75 MiB more than the limit; one that escaped it shows gigabytes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`granted` and `observed`: MiB, for TOO_MANY_PROCESSES processes.

    `culprits`: the processes to be ended where the share says so, the newest first. Empty where nothing is to be ended:
    of the host, of a pod without a slot, of one whose grant is only assumed or whose way to MPS is missing, or ended
    already. `companions`: the MPS
    clients in the container of culprits that are none.
    """

    reason: EventReason
    usage: Usage
    granted: int
    observed: int
    culprits: tuple[Listed, ...] = ()
    companions: tuple[Listed, ...] = ()


def violations(reading: Reading) -> list[Violation]:
    credible = sum(usage.memory_mib for usage in reading.usages) <= reading.gpu_memory_mib
    unreached = [Violation(EventReason.EDITS_NOT_APPLIED, usage, 0, 0) for usage in reading.without_mounts]
    return [offence for usage in reading.usages for offence in _judge(usage, reading, credible)] + unreached


def _judge(usage: Usage, reading: Reading, credible: bool) -> Iterable[Violation]:
    if not usage.mps:
        yield _past_mps(usage, reading)
    elif usage.pod and not usage.container:
        return  # its pod's status will tell which container it is
    elif not usage.slot:
        yield Violation(EventReason.NO_GRANT, usage, 0, usage.memory_mib)
    elif usage.grant is not None:
        yield from _above_grant(usage, usage.grant, credible)


def _past_mps(usage: Usage, reading: Reading) -> Violation:
    if not usage.slot:
        return Violation(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib)
    if all(process.bare for process in usage.listed):
        return Violation(EventReason.EDITS_NOT_APPLIED, usage, 0, usage.memory_mib)
    same = [it for it in reading.usages if it.mps and (it.pod_uid, it.container) == (usage.pod_uid, usage.container)]
    companions = tuple(process for it in same for process in _living(it))
    return Violation(EventReason.NOT_AN_MPS_CLIENT, usage, 0, usage.memory_mib, _newest_first(usage.listed), companions)


def _above_grant(usage: Usage, grant: Grant, credible: bool) -> Iterable[Violation]:
    living = _living(usage)
    # All of the container's processes: what one of them does about its end, such as to exit as the main process, or to
    # stop its siblings, could cut off the others' kernels, which would take the neighbours along.
    culprits = () if usage.by_default else living
    if len(living) > grant.processes:
        yield Violation(EventReason.TOO_MANY_PROCESSES, usage, grant.processes, len(living), culprits)
    if credible and usage.memory_mib > grant.memory_mib + TOLERANCE_MIB * usage.processes:
        yield Violation(EventReason.MEMORY_ABOVE_GRANT, usage, grant.memory_mib, usage.memory_mib, culprits)


def _living(usage: Usage) -> tuple[Listed, ...]:
    return _newest_first(process for process in usage.listed if not process.ended)


def _newest_first(processes: Iterable[Listed]) -> tuple[Listed, ...]:
    """The oldest last: it is the container's main process, with which the kernel kills all others."""
    return tuple(sorted(processes, key=lambda process: (process.started, process.pid), reverse=True))


def sentence(offence: Violation) -> str:
    """Who uses what, and what was granted."""
    usage = offence.usage
    who, gpu = whose(usage), f"GPU {usage.uuid} of GpuShare {usage.share}"
    match offence.reason:
        case EventReason.MEMORY_ABOVE_GRANT:
            count = "1 process" if usage.processes == 1 else f"{usage.processes} processes together"
            return f"{who} uses {offence.observed} MiB on {gpu} ({count}), granted are {offence.granted} MiB"
        case EventReason.TOO_MANY_PROCESSES:
            return f"{who} has {offence.observed} CUDA processes on {gpu}, granted are {offence.granted}"
        case EventReason.NOT_AN_MPS_CLIENT:
            listed = ", ".join(str(pid) for pid in usage.pids[:8])
            return (
                f"{who} uses {offence.observed} MiB on {gpu} past MPS (PID {listed}), granted are 0 MiB: no limit "
                "binds it, and while it stays MPS may not start"
            )
        case EventReason.EDITS_NOT_APPLIED:
            return (
                f"{who} holds a slot of {gpu}, but was started without the mounts that go with it, so it cannot reach "
                f"MPS and uses {offence.observed} MiB past it: is CDI off in the node's container runtime?"
            )
    return f"{who} is an MPS client on {gpu} with {offence.observed} MiB, granted are 0 MiB: it holds no slot of it"


def whose(usage: Usage) -> str:
    if usage.pod:
        container = f"container {usage.container}" if usage.container else "an unknown container"
        return f"{container} of pod {usage.namespace}/{usage.pod}"
    pids = ", ".join(str(pid) for pid in usage.pids[:8])
    if usage.pod_uid:
        return f"process {pids} of pod {usage.pod_uid}, which the API does not know,"
    return f"process {pids} of the host"


CLEAR_SECONDS = 10.0
"""A finding goes when its offence was not seen for so long: what swings about the limit is told once."""
PATIENCE_SECONDS = {EventReason.NO_GRANT: 30.0}
"""A pod deleted by force is gone from the API before the kubelet has ended its processes."""

Key = tuple[Uuid, ShareName, str, str, str, int]
"""(GPU, share, reason, pod uid, container, PID where no pod is known): the same after a restart of the agent."""


@dataclass(frozen=True, slots=True)
class ConfirmedViolation:
    """A finding that the latest reading confirms. `culprits`: of the offence, those that two readings name."""

    finding: Finding
    offence: Violation
    culprits: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """`first` and `last`: when its readings were taken. `finding` None: not found out yet."""

    first: float
    last: float
    culprits: frozenset[tuple[int, int]]
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """`gone`: findings that hold no more."""

    standing: tuple[ConfirmedViolation, ...]
    gone: tuple[Finding, ...]


class ViolationTracker:
    def __init__(self, before: Sequence[Finding], now: float) -> None:
        """`before`: what an agent before this one told; it goes like any other. `now`: on the clock of `taken_at`."""
        self._cases = {key_of(finding): _Case(now, now, frozenset(), finding) for finding in before}
        self._read: dict[Uuid, float] = {}

    def judge(self, readings: Iterable[Reading], taken: Mapping[Uuid, ShareName], wall: str) -> Judgement:
        """By these new readings. `taken`: our GPUs and whose each is; other findings go, also those of a share that had
        the GPU before. `wall`: RFC 3339, for findings made now.
        """
        before = self._cases
        self._cases = {key: case for key, case in before.items() if taken.get(key[0]) == key[1]}
        standing = tuple(item for reading in readings for item in self._judge(reading, wall))
        gone = tuple(case.finding for key, case in before.items() if case.finding and key not in self._cases)
        return Judgement(standing, gone)

    def told(self) -> list[Finding]:
        """For the node's status, in an order that does not change while they stand."""
        found = [case.finding for case in self._cases.values() if case.finding is not None]
        return sorted(found, key=lambda finding: (finding.since, *key_of(finding)))[:MAX_FINDINGS]

    def _judge(self, reading: Reading, wall: str) -> Iterable[ConfirmedViolation]:
        previous = self._read.get(reading.uuid)
        self._read[reading.uuid] = reading.taken_at
        seen: set[Key] = set()
        for offence in violations(reading):
            key = _key(offence)
            if key in seen:
                continue
            seen.add(key)
            standing = self._confirm(key, offence, previous, reading.taken_at, wall)
            if standing is not None:
                yield standing
        self._clear(reading, seen)

    def _confirm(
        self, key: Key, offence: Violation, previous: float | None, now: float, wall: str
    ) -> ConfirmedViolation | None:
        known = self._cases.get(key)
        lasting = known is not None and known.last == previous
        named = frozenset((process.pid, process.started) for process in offence.culprits)
        twice = known.culprits if known is not None and lasting else frozenset()
        first = known.first if known is not None and lasting else now
        finding = known.finding if known is not None else None
        patience = PATIENCE_SECONDS.get(offence.reason, 0.0)
        if finding is None and lasting and now - first >= patience:
            finding = _finding(offence, wall)
        if finding is not None and any(process.ended for process in offence.usage.listed):
            finding = finding.model_copy(update={"ended": True})
        self._cases[key] = _Case(first, now, named, finding)
        if finding is None:
            return None
        culprits = tuple(process for process in offence.culprits if (process.pid, process.started) in twice)
        return ConfirmedViolation(finding, offence, culprits)

    def _clear(self, reading: Reading, seen: set[Key]) -> None:
        def stays(key: Key, case: _Case) -> bool:
            if key[0] != reading.uuid or key in seen:
                return True
            return case.finding is not None and reading.taken_at - case.last < CLEAR_SECONDS

        self._cases = {key: case for key, case in self._cases.items() if stays(key, case)}


def key_of(finding: Finding) -> Key:
    pid = 0 if finding.pod_uid else finding.pid
    return finding.uuid, finding.share, finding.reason, finding.pod_uid, finding.container, pid


def _key(offence: Violation) -> Key:
    usage = offence.usage
    pid = 0 if usage.pod_uid else usage.pids[0]
    return usage.uuid, usage.share, str(offence.reason), usage.pod_uid, usage.container, pid


def _finding(offence: Violation, wall: str) -> Finding:
    usage = offence.usage
    first = offence.culprits[0].pid if offence.culprits else usage.pids[0]
    return Finding(
        uuid=usage.uuid,
        share=usage.share,
        reason=offence.reason,
        namespace=usage.namespace,
        pod=usage.pod,
        pod_uid=usage.pod_uid,
        container=usage.container,
        pid=first,
        granted=offence.granted,
        observed=offence.observed,
        message=sentence(offence)[:1024],
        since=wall,
    )
