"""Offences become findings when they last, and findings go when the offence is gone. Pure: times are handed in.

Guarantees: nothing is told, and nobody named as to be ended, by one reading alone; a GPU of which there is no new
reading keeps its findings as they are; a finding keeps the figures it was made with, so one that stands costs no write.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import MAX_FINDINGS, Finding, ShareName, Uuid
from gpushare.node.offences import Offence, offences, sentence
from gpushare.node.usage import Listed, Reading

CLEAR_SECONDS = 10.0
"""A finding goes when its offence was not seen for so long: what swings about the limit is told once."""
PATIENCE_SECONDS = {EventReason.NO_GRANT: 30.0}
"""A pod deleted by force is gone from the API before the kubelet has ended its processes."""

Key = tuple[Uuid, ShareName, str, str, str, int]
"""(GPU, share, reason, pod uid, container, PID where no pod is known): the same after a restart of the agent."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A finding that the latest reading confirms. `culprits`: of the offence, those that two readings name."""

    finding: Finding
    offence: Offence
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

    standing: tuple[Standing, ...]
    gone: tuple[Finding, ...]


class Findings:
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

    def _judge(self, reading: Reading, wall: str) -> Iterable[Standing]:
        previous = self._read.get(reading.uuid)
        self._read[reading.uuid] = reading.taken_at
        seen: set[Key] = set()
        for offence in offences(reading):
            key = _key(offence)
            if key in seen:
                continue
            seen.add(key)
            standing = self._confirm(key, offence, previous, reading.taken_at, wall)
            if standing is not None:
                yield standing
        self._clear(reading, seen)

    def _confirm(self, key: Key, offence: Offence, previous: float | None, now: float, wall: str) -> Standing | None:
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
        return Standing(finding, offence, culprits)

    def _clear(self, reading: Reading, seen: set[Key]) -> None:
        def stays(key: Key, case: _Case) -> bool:
            if key[0] != reading.uuid or key in seen:
                return True
            return case.finding is not None and reading.taken_at - case.last < CLEAR_SECONDS

        self._cases = {key: case for key, case in self._cases.items() if stays(key, case)}


def key_of(finding: Finding) -> Key:
    pid = 0 if finding.pod_uid else finding.pid
    return finding.uuid, finding.share, finding.reason, finding.pod_uid, finding.container, pid


def _key(offence: Offence) -> Key:
    usage = offence.usage
    pid = 0 if usage.pod_uid else usage.pids[0]
    return usage.uuid, usage.share, str(offence.reason), usage.pod_uid, usage.container, pid


def _finding(offence: Offence, wall: str) -> Finding:
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
