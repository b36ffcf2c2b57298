"""Acts on findings: events with both figures and, under `enforcement: Terminate`, the end of the offending processes.

Guarantees: an MPS client is ended through its MPS daemon alone, so that its neighbours go on, and never by a signal: in
mid-kernel that would end them too, and after the daemon's `0` the client computes no more. A process past MPS gets
signals only if it belongs to a container with a slot of the share, the MPS daemon does not list it as a client, and the
MPS clients of its container were terminated before. No signal reaches another process than the one that was read (a
pidfd, and the start time read through it). Processes of the host, and of pods without a slot, are reported and never
ended. GPUs do not hold up one another.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Protocol

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.observe.usage import ListedProcess
from gpushare.agent.observe.violations import ConfirmedViolation, Judgement, describe
from gpushare.agent.process import signals
from gpushare.agent.process.processes import Identity, identity
from gpushare.agent.terminate.terminate import ClientTerminator, TerminationCause
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Finding, ShareName, Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, Reason, pod_reference
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.control import ControlError, NoDaemonError
from gpushare.process import procfs
from gpushare.process.procfs import PROC

LOG = logging.getLogger(__name__)

KILL_AFTER_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""
CONTROL_SECONDS = 10.0

Signalled = tuple[ListedProcess, str]
"""(process, name of the signal)."""


class Recorder(Protocol):
    """The part of gpushare.kube.events.recorder.EventRecorder that is used here."""

    def record(self, event: Event) -> None: ...

    def resolve(self, regarding: Object, reason: Reason, subject: str = "") -> None: ...


class MpsClientList(Protocol):
    """The part of gpushare.mps.control.ControlProgram that is used here, with its errors."""

    def server_list(self) -> list[int]: ...

    def clients(self, server: int) -> list[int]: ...


class ViolationEnforcer:
    def __init__(
        self,
        node: str,
        terminator: ClientTerminator,
        control: Callable[[Uuid], MpsClientList],
        recorder: Recorder,
        clock: Callable[[], float],
        proc: Path = PROC,
    ) -> None:
        """`control`: the control program of a GPU's MPS daemon. `clock`: seconds, monotonic."""
        self._node = node
        self._terminator = terminator
        self._recorder = recorder
        self._non_mps = NonMpsProcesses(control, clock, proc)
        self._under_way: dict[Uuid, asyncio.Task[None]] = {}
        self._problems = LogOnChange(LOG)

    def was_terminated(self, uuid: Uuid, process: ListedProcess) -> bool:
        return self._terminator.was_asked(uuid, process)

    def enforce(self, judgement: Judgement, terminating: Collection[ShareName]) -> None:
        """`terminating`: the shares with `enforcement: Terminate`. Never waits: processes are ended in tasks."""
        for finding in judgement.cleared:
            self._recorder.resolve(self._regarding(finding), EventReason(finding.reason), _subject(finding))
        to_end: dict[Uuid, list[ConfirmedViolation]] = {}
        for confirmed in judgement.confirmed:
            self._record_finding(confirmed.finding)
            if confirmed.to_end and confirmed.finding.share in terminating:
                to_end.setdefault(confirmed.finding.uuid, []).append(confirmed)
        for uuid, some in to_end.items():
            if uuid not in self._under_way:
                self._under_way[uuid] = asyncio.create_task(self._end(uuid, some), name=f"enforcement on {uuid}")

    async def _end(self, uuid: Uuid, some: list[ConfirmedViolation]) -> None:
        try:
            for confirmed in some:
                if confirmed.violation.reason is EventReason.NOT_AN_MPS_CLIENT:
                    problem = await self._end_non_mps(uuid, confirmed)
                else:
                    problem = await self._terminate(uuid, confirmed, confirmed.to_end)
                self._note(uuid, problem)
        finally:
            del self._under_way[uuid]

    async def _terminate(self, uuid: Uuid, confirmed: ConfirmedViolation, clients: Sequence[ListedProcess]) -> str:
        """Returns the problem, if there was one."""
        terminated, problem = await self._terminator.terminate(uuid, clients, TerminationCause.ENFORCEMENT)
        for process in terminated:
            note = (
                f"Ended the CUDA contexts of process {process.pid} ({describe(confirmed.violation.usage)}) on GPU "
                f"{uuid} through its MPS daemon, as GpuShare {confirmed.finding.share} says (enforcement: Terminate): "
                f"{confirmed.finding.message}. The other clients go on; the process gets CUDA error 810."
            )
            self._record_end(confirmed, process, EventReason.CLIENT_TERMINATED, "TerminateClient", note)
        return problem

    async def _end_non_mps(self, uuid: Uuid, confirmed: ConfirmedViolation) -> str:
        """After the MPS clients of its container: if it is the main process, its end kills them in mid-kernel."""
        clients = confirmed.violation.clients_beside
        problem = await self._terminate(uuid, confirmed, clients)
        if not all(self._terminator.was_asked(uuid, process) for process in clients):
            return problem
        signalled, problem = await self._non_mps.end(uuid, confirmed.to_end)
        for process, signal_name in signalled:
            note = (
                f"Sent {signal_name} to process {process.pid} ({describe(confirmed.violation.usage)}), as GpuShare "
                f"{confirmed.finding.share} says (enforcement: Terminate): {confirmed.finding.message}."
            )
            self._record_end(confirmed, process, EventReason.PROCESS_ENDED, "EndProcess", note)
        return problem

    def _record_finding(self, finding: Finding) -> None:
        self._recorder.record(
            Event(
                self._regarding(finding),
                "Warning",
                EventReason(finding.reason),
                "Observe",
                finding.message,
                subject=_subject(finding),
                key=f"{finding.granted}",
            )
        )

    def _record_end(
        self, confirmed: ConfirmedViolation, process: ListedProcess, reason: EventReason, action: str, note: str
    ) -> None:
        subject = f"{process.pid}/{process.started}"
        regarding = self._regarding(confirmed.finding)
        self._recorder.record(Event(regarding, "Warning", reason, action, note, subject, happened=True))

    def _regarding(self, finding: Finding) -> Object:
        """The pod, or this node's GpuNode if no pod is known."""
        if not finding.pod:
            return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        return pod_reference(finding.namespace, finding.pod, finding.pod_uid)

    def _note(self, uuid: Uuid, problem: str) -> None:
        if problem:
            text = "processes that violate their grant on GPU %s are not ended yet, trying again: %s"
            self._problems.log(text, uuid, problem, key=uuid)
        else:
            self._problems.clear(uuid)


def _subject(finding: Finding) -> str:
    return finding.container or f"{finding.uuid}/{finding.pid}"


class NonMpsProcesses:
    """Ends processes on a shared GPU that are no MPS clients: first SIGTERM, ten seconds later SIGKILL.

    They share no MPS server with anybody, so their end harms no client.
    """

    def __init__(self, control: Callable[[Uuid], MpsClientList], clock: Callable[[], float], proc: Path) -> None:
        self._control = control
        self._clock = clock
        self._proc = proc
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._sigterm_at: dict[Identity, float] = {}

    async def end(self, uuid: Uuid, non_mps: Sequence[ListedProcess]) -> tuple[list[Signalled], str]:
        """(what was sent now, why others could not be signalled). Call again until they have ended."""
        caller = self._callers.setdefault(uuid, BlockingCaller(f"non-MPS processes on GPU {uuid}", CONTROL_SECONDS))
        try:
            return await caller.call(self._end, uuid, non_mps)
        except HungError as error:
            return [], str(error)

    def _end(self, uuid: Uuid, non_mps: Sequence[ListedProcess]) -> tuple[list[Signalled], str]:
        """Blocks."""
        self._sigterm_at = {
            key: at for key, at in self._sigterm_at.items() if procfs.read_start_time(key[0], self._proc) == key[1]
        }
        try:
            clients = self._clients(uuid)
        except ControlError as error:
            return [], str(error)
        signalled: list[Signalled] = []
        problem = ""
        for process in non_mps:
            if process.pid in clients:
                problem = f"process {process.pid} is a client of the MPS daemon, although NVML does not say so"
                continue
            try:
                number = self._next_signal(process)
                if number is not None and self._send(process, number):
                    signalled.append((process, number.name))
            except OSError as error:
                problem = f"process {process.pid} cannot be signalled: {error.strerror}"
        return signalled, problem

    def _clients(self, uuid: Uuid) -> set[int]:
        control = self._control(uuid)
        try:
            return {pid for server in control.server_list() for pid in control.clients(server)}
        except NoDaemonError:
            return set()

    def _next_signal(self, process: ListedProcess) -> Signals | None:
        sigterm_at = self._sigterm_at.get(identity(process))
        if sigterm_at is None:
            return SIGTERM
        return SIGKILL if self._clock() - sigterm_at >= KILL_AFTER_SECONDS else None

    def _send(self, process: ListedProcess, number: Signals) -> bool:
        """False: it has ended."""
        if not signals.send(process, number, self._proc):
            return False
        self._sigterm_at.setdefault(identity(process), self._clock())
        return True
