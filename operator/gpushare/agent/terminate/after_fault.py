"""Ends faulted clients once the share's `faultTimeout` is over.

A server in FAULT takes no new client until its last client has ended, so one idle notebook would keep everybody else
off the GPU for ever.

Guarantees: only processes are ended that the server itself lists as clients while it is in FAULT, and that started
before the fault; none before the timeout, and none without an event on its pod before and after. A process that
belongs to no pod is never signalled. The signals are SIGTERM and, after the pod's grace period, SIGKILL; the MPS daemon
is not asked, since `terminate_client` in FAULT hangs it until the process has ended (measured on H200). The signals
harm nobody: the contexts of all clients are lost already (700 or 719 in each of them, measured), so no kernel is cut
off. Whether a client has ended, /proc says: a state that lists none, or an old one, may mean that the MPS daemon did
not answer. Until then what was sent to it is remembered, and its grace period goes on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes, signals
from gpushare.agent.process.processes import Identity, Process, identity
from gpushare.agent.terminate.owners import pod_of
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import grace_period_seconds
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.clock import boot_clock
from gpushare.mps.wire import DaemonState, is_fresh
from gpushare.process.procfs import PROC, read_start_of_running

LOG = logging.getLogger(__name__)

SCAN_SECONDS = 1.0
PROC_SECONDS = 5.0

Send = Callable[[Process, Signals, Path], bool]
"""As `signals.send`."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A GPU of `share` whose server has been in FAULT since `since` (CLOCK_BOOTTIME seconds) and waits for `clients`,
    by PID. `timeout`: seconds.
    """

    uuid: Uuid
    share: ShareName
    since: float
    timeout: float
    clients: tuple[int, ...]


def faults_of(states: Mapping[Uuid, DaemonState], shares: Mapping[ShareName, GpuShare], now: float) -> list[GpuFault]:
    """From fresh states of supervisors whose share is known: a timeout that is not known is not over."""
    return [
        GpuFault(uuid, state.share, state.fault_since, float(share.fault_timeout_seconds), tuple(state.faulted_clients))
        for uuid, state in states.items()
        if (share := shares.get(state.share)) is not None
        and state.fault_since is not None
        and state.faulted_clients
        and is_fresh(state.heartbeat, now)
    ]


def next_signal(now: float, due: float, sent: Mapping[Signals, float], grace: float | None) -> Signals | None:
    """`due`: when the timeout is over. `sent`: when each signal was sent. `grace`: of its pod; None: it has no pod.

    All times are CLOCK_BOOTTIME seconds.
    """
    if now < due or grace is None:
        return None
    if Signals.SIGTERM not in sent:
        return Signals.SIGTERM
    return Signals.SIGKILL if Signals.SIGKILL not in sent and now >= sent[Signals.SIGTERM] + grace else None


class FaultedClientReaper:
    def __init__(
        self,
        node: str,
        faults: Callable[[], Collection[GpuFault]],
        pods: Callable[[], Mapping[str, Object]],
        record: Callable[[Event], None],
        clock: Callable[[], float] = boot_clock,
        proc: Path = PROC,
        send: Send = signals.send,
    ) -> None:
        """`faults`: those of now, by `faults_of`. `pods`: this node's by uid. `record`: takes an event, and never
        waits. `clock`: CLOCK_BOOTTIME seconds.
        """
        self._node = node
        self._faults = faults
        self._pods = pods
        self._record = record
        self._clock = clock
        self._proc = proc
        self._send = send
        self._proc_caller = BlockingCaller("processes after a fault", PROC_SECONDS)
        self._sent: dict[Identity, dict[Signals, float]] = {}
        """When each signal was sent, to processes that run or that a server lists."""
        self._signalled: dict[Uuid, set[Identity]] = {}
        self._problems = LogOnChange(LOG)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_SECONDS)

    async def scan(self) -> None:
        """Once: what is due now."""
        faults = self._faults()
        try:
            for fault in faults:
                await self._scan_gpu(fault)
            if self._sent:
                await self._follow_ends(faults)
        except HungError as error:
            self._note(str(error))

    async def _follow_ends(self, faults: Collection[GpuFault]) -> None:
        running = await self._proc_caller.call(self._running, tuple(self._sent))
        for uuid in self._signalled.keys() - {fault.uuid for fault in faults}:
            if not self._signalled[uuid] & running:
                self._record_end(uuid, {pid for pid, _ in self._signalled.pop(uuid)})
        # A server may list a client for a moment that has ended: it gets no signal again.
        listed = {pid for fault in faults for pid in fault.clients}
        self._sent = {one: sent for one, sent in self._sent.items() if one in running or one[0] in listed}

    def _running(self, signalled: Collection[Identity]) -> set[Identity]:
        """Blocks."""
        return {(pid, started) for pid, started in signalled if read_start_of_running(pid, self._proc) == started}

    async def _scan_gpu(self, fault: GpuFault) -> None:
        faulted = await self._proc_caller.call(self._faulted_clients, fault)
        due = {process: self._next_signal(fault, process) for process in faulted}
        for process in faulted:
            self._record_fault(fault, process)
        problem = ""
        for process, number in due.items():
            if number is not None:
                problem = self._signal(fault, process, number) or problem
        self._note(problem)

    def _faulted_clients(self, fault: GpuFault) -> list[Process]:
        """Blocks. A process that is younger than the fault has reused a client's PID."""
        return [it for it in processes.read_all(fault.clients, self._proc) if processes.started_at(it) <= fault.since]

    def _next_signal(self, fault: GpuFault, process: Process) -> Signals | None:
        owner = pod_of(process, self._pods())
        grace = None if owner is None else grace_period_seconds(owner[0])
        # What it got at an earlier fault, which it survived, does not count.
        sent = {number: at for number, at in self._sent.get(identity(process), {}).items() if at >= fault.since}
        return next_signal(self._clock(), fault.since + fault.timeout, sent, grace)

    def _signal(self, fault: GpuFault, process: Process, number: Signals) -> str:
        """Returns the problem, if there was one."""
        try:
            sent = self._send(process, number, self._proc)
        except OSError as error:
            return f"process {process.pid} cannot be signalled: {error.strerror or error}"
        self._sent.setdefault(identity(process), {})[number] = self._clock()
        self._signalled.setdefault(fault.uuid, set()).add(identity(process))
        if sent:
            self._record_signal(fault, process, number)
        return ""

    def _record_fault(self, fault: GpuFault, process: Process) -> None:
        self._record_on_pod(
            process,
            EventReason.CLIENT_FAULTED,
            f"A fatal fault on GPU {fault.uuid}, its own or that of one of its neighbours, has taken the CUDA contexts "
            f"of process {process.pid}{self._container(process)}. Until it ends, the GPU takes no new client: restart "
            f"it. It is ended {fault.timeout:.0f} s after the fault (faultTimeout of GpuShare {fault.share}).",
        )

    def _record_signal(self, fault: GpuFault, process: Process, number: Signals) -> None:
        self._record_on_pod(
            process,
            EventReason.PROCESS_ENDED,
            f"Sent {number.name} to process {process.pid}{self._container(process)}, which still held GPU {fault.uuid} "
            f"{fault.timeout:.0f} s after a fatal fault (faultTimeout of GpuShare {fault.share}). Its CUDA contexts "
            "were lost with the fault.",
        )

    def _record_end(self, uuid: Uuid, pids: set[int]) -> None:
        note = f"GPU {uuid}: faulted clients were ended after faultTimeout: PID {', '.join(map(str, sorted(pids)))}"
        regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        reason = EventReason.FAULTED_CLIENTS_ENDED
        self._record(Event(regarding, "Warning", reason, "EndClients", note, uuid, happened=True))

    def _record_on_pod(self, process: Process, reason: EventReason, note: str) -> None:
        owner = pod_of(process, self._pods())
        if owner is not None:
            regarding, subject = reference(owner[0], "v1", "Pod"), f"{process.pid}/{process.started}"
            self._record(Event(regarding, "Warning", reason, "EndFaultedClient", note, subject))

    def _container(self, process: Process) -> str:
        owner = pod_of(process, self._pods())
        return f" (container {owner[1]})" if owner is not None and owner[1] else ""

    def _note(self, problem: str) -> None:
        if problem:
            self._problems.log("faulted clients are not ended yet, trying again: %s", problem)
        else:
            self._problems.clear()
