"""Acts on findings: events with both figures and, under `enforcement: Terminate`, the end of the offending processes.

Guarantees: an MPS client is ended through its MPS daemon, so that its neighbours go on. One that keeps its memory after
that, so that its container stays above its grant, gets signals: SIGTERM, then SIGKILL. In mid-kernel a signal would end
its neighbours, so it comes only after the daemon's `0`, when the client computes no more, and after that of all clients
of its container. A process past MPS gets signals only if it belongs to a container with a slot of the share, the MPS
daemon does not list it as a client, and the MPS clients of its container were terminated before. Processes of the host,
and of pods without a slot, are reported and never ended. Who computes without a place, past a queue in which others
wait, is ended under any `enforcement`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from signal import Signals

from gpushare.agent.observe.usage import ListedProcess
from gpushare.agent.observe.violations import ConfirmedViolation, Judgement, describe
from gpushare.agent.process.processes import Identity, identity
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest, next_signal
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Finding, ShareName, Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, pod_reference
from gpushare.kube.events.recorder import EventRecorder

KILL_AFTER_SECONDS = 10.0
"""The time from SIGTERM to SIGKILL."""


def violation_requests(
    confirmed: Iterable[ConfirmedViolation], sent: Callable[[Identity], Mapping[Signals, float]], now: float
) -> list[TerminationRequest]:
    """Pure. What is to be ended of these violations, whose shares have them ended.

    `sent`: when which signals were sent to a process. `now`: CLOCK_BOOTTIME seconds.
    """
    requests: list[TerminationRequest] = []
    for item in confirmed:
        if item.violation.reason in (EventReason.NOT_AN_MPS_CLIENT, EventReason.CLIENT_NOT_LISTED):
            requests += _past_mps_requests(item, sent, now)
        else:
            requests += (_client_request(item, process) for process in item.to_end)
            requests += _kept_memory_requests(item, sent, now)
    return requests


class ViolationEnforcer:
    """Records findings, and asks for the end of the processes that they name."""

    def __init__(
        self, node: str, executor: TerminationExecutor, recorder: EventRecorder, clock: Callable[[], float]
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self._node = node
        self._executor = executor
        self._recorder = recorder
        self._clock = clock

    def was_terminated(self, uuid: Uuid, process: ListedProcess) -> bool:
        return self._executor.was_asked(uuid, process)

    def enforce(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        """`terminating`: the shares with `enforcement: Terminate`. Never waits."""
        for finding in judgement.cleared:
            self._recorder.resolve(_regarding(finding, self._node), EventReason(finding.reason), _subject(finding))
        for confirmed in judgement.confirmed:
            self._record_finding(confirmed.finding)
        strict = [item for item in judgement.confirmed if item.finding.share in terminating or _breaks_queue(item)]
        self._executor.submit(violation_requests(strict, self._executor.sent, self._clock()))

    def _record_finding(self, finding: Finding) -> None:
        self._recorder.record(
            Event(
                _regarding(finding, self._node),
                "Warning",
                EventReason(finding.reason),
                "Observe",
                finding.message,
                subject=_subject(finding),
                key=f"{finding.granted}",
            )
        )


def _past_mps_requests(
    confirmed: ConfirmedViolation, sent: Callable[[Identity], Mapping[Signals, float]], now: float
) -> Iterator[TerminationRequest]:
    """The container's MPS clients come first: if it is the main process, its end kills them in mid-kernel. A process
    past MPS shares no MPS server with anybody, so its own end harms no client. One that forged its PID is a client: its
    contexts end with those of the process that it named, which is among `clients_beside` as long as it runs.
    """
    clients = confirmed.violation.clients_beside
    yield from (_client_request(confirmed, process) for process in clients)
    for process, number in _signals(confirmed.to_end, sent, now):
        request = _request(confirmed, process, f"{confirmed.finding.message}.")
        yield replace(request, signal=number, after=clients, past_mps=True)


def _kept_memory_requests(
    confirmed: ConfirmedViolation, sent: Callable[[Identity], Mapping[Signals, float]], now: float
) -> Iterator[TerminationRequest]:
    """Their contexts were ended, so signals to them cut off no kernel of theirs, and none of the container's others,
    which are ended before.
    """
    usage = confirmed.violation.usage
    why = (
        f"its CUDA contexts were ended, and it keeps its memory: {describe(usage)} still uses "
        f"{confirmed.violation.observed} MiB of GPU {usage.uuid}, its grant is {confirmed.violation.granted} MiB."
    )
    for process, number in _signals(confirmed.to_signal, sent, now):
        yield replace(_request(confirmed, process, why), signal=number, after=confirmed.to_end)


def _signals(
    processes: Iterable[ListedProcess], sent: Callable[[Identity], Mapping[Signals, float]], now: float
) -> Iterator[tuple[ListedProcess, Signals]]:
    """The processes that are due for a signal, with it."""
    for process in processes:
        number = next_signal(now, now, sent(identity(process)), KILL_AFTER_SECONDS)
        if number is not None:
            yield process, number


def _request(confirmed: ConfirmedViolation, process: ListedProcess, why: str, how: str = "") -> TerminationRequest:
    finding, policy = confirmed.finding, "clients.queue" if _breaks_queue(confirmed) else "enforcement: Terminate"
    return TerminationRequest(
        TerminationReason.VIOLATION,
        finding.uuid,
        process,
        _pod(finding),
        f" ({describe(confirmed.violation.usage)})",
        f"{how}, as GpuShare {finding.share} says ({policy}): {why}",
    )


def _client_request(confirmed: ConfirmedViolation, process: ListedProcess) -> TerminationRequest:
    finding = confirmed.finding
    why = f"{finding.message}. The other clients go on; the process gets CUDA error 810."
    return _request(confirmed, process, why, how=f" on GPU {finding.uuid} through its MPS daemon")


def _breaks_queue(confirmed: ConfirmedViolation) -> bool:
    """A place is the others' who wait for it: whoever takes one past the queue is ended, whatever `enforcement` is."""
    return confirmed.violation.reason is EventReason.COMPUTES_WITHOUT_PLACE


def _regarding(finding: Finding, node: str) -> Object:
    """The pod or, if no pod is known, the GpuNode of `node`."""
    return _pod(finding) if finding.pod else {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": node}


def _pod(finding: Finding) -> Object:
    return pod_reference(finding.namespace, finding.pod, finding.pod_uid)


def _subject(finding: Finding) -> str:
    return finding.container or f"{finding.uuid}/{finding.pid}"
