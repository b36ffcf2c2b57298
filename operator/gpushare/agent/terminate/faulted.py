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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes
from gpushare.agent.process.processes import Identity, Process, identity
from gpushare.agent.terminate.clients import GpuScans, pod_of
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest, next_signal
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.kube.pods import grace_period_seconds
from gpushare.mps.clock import boot_clock
from gpushare.mps.wire import DaemonState, is_fresh
from gpushare.process.procfs import PROC, read_start_of_running

SCAN_SECONDS = 1.0
PROC_SECONDS = 5.0


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
    """Reads fresh states of supervisors whose share is known: a timeout that is not known is not over."""
    return [
        GpuFault(uuid, state.share, state.fault_since, float(share.fault_timeout_seconds), tuple(state.faulted_clients))
        for uuid, state in states.items()
        if (share := shares.get(state.share)) is not None
        and state.fault_since is not None
        and state.faulted_clients
        and is_fresh(state.heartbeat, now)
    ]


def faulted_requests(
    fault: GpuFault,
    clients: Iterable[Process],
    pods: Mapping[str, Object],
    sent: Callable[[Identity], Mapping[Signals, float]],
    now: float,
) -> list[TerminationRequest]:
    """Pure. The signals that are due now. `clients`: those of the fault. `pods`: this node's by uid. `sent`: when which
    signals were sent to a process; those of an earlier fault, which it survived, do not count. `now`: CLOCK_BOOTTIME
    seconds.
    """
    requests = []
    for process in clients:
        owner = pod_of(process, pods)
        if owner is None:
            continue  # never signalled
        before = {number: at for number, at in sent(identity(process)).items() if at >= fault.since}
        number = next_signal(now, fault.since + fault.timeout, before, grace_period_seconds(owner[0]))
        if number is not None:
            requests.append(_request(fault, process, owner, number))
    return requests


def fault_warning(fault: GpuFault, process: Process, pods: Mapping[str, Object]) -> Event | None:
    """Pure. The event before the end; None: the process belongs to no pod."""
    owner = pod_of(process, pods)
    if owner is None:
        return None
    note = (
        f"A fatal fault on GPU {fault.uuid}, its own or that of one of its neighbours, has taken the CUDA contexts of "
        f"process {process.pid}{_container(owner)}. Until it ends, the GPU takes no new client: restart it. It is "
        f"ended {fault.timeout:.0f} s after the fault (faultTimeout of GpuShare {fault.share})."
    )
    subject = f"{process.pid}/{process.started}"
    return Event(
        reference(owner[0], "v1", "Pod"), "Warning", EventReason.CLIENT_FAULTED, "EndFaultedClient", note, subject
    )


class FaultedClientReaper:
    """Follows the GPUs whose server is in FAULT."""

    def __init__(
        self,
        node: str,
        faults: Callable[[], Collection[GpuFault]],
        pods: Callable[[], Mapping[str, Object]],
        executor: TerminationExecutor,
        record: Callable[[Event], None],
        clock: Callable[[], float] = boot_clock,
        proc: Path = PROC,
    ) -> None:
        """`faults`: those of now, by `faults_of`. `pods`: this node's by uid. `record`: takes an event, and never
        waits. `clock`: CLOCK_BOOTTIME seconds.
        """
        self._node = node
        self._faults = faults
        self._pods = pods
        self._executor = executor
        self._record = record
        self._clock = clock
        self._proc = proc
        self._gpus: dict[Uuid, GpuFault] = {}
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._scans = GpuScans("faulted clients of", self._scan)
        self._requested: dict[Uuid, set[Identity]] = {}
        """The processes whose end was requested, of each GPU of which they are not known to have ended."""
        self._signalled: dict[Uuid, set[Identity]] = {}
        """Those of them that got a signal."""

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self.start_scans()
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            self._scans.cancel()

    def start_scans(self) -> list[asyncio.Task[None]]:
        """One for each GPU with a fault, or with clients whose end is awaited; returns those under way."""
        self._gpus = {fault.uuid: fault for fault in self._faults()}
        return self._scans.start(self._gpus.keys() | self._requested.keys())

    async def _scan(self, uuid: Uuid) -> None:
        caller = self._callers.setdefault(uuid, BlockingCaller(f"faulted clients of GPU {uuid}", PROC_SECONDS))
        fault = self._gpus.get(uuid)
        signalled = {key for key in self._requested.get(uuid, ()) if self._executor.sent(key)}
        self._signalled.setdefault(uuid, set()).update(signalled)
        try:
            if fault is not None:
                self._request_ends(fault, await caller.call(self._faulted_clients, fault))
            elif not await caller.call(self._any_runs, self._signalled[uuid]):
                self._record_end(uuid)
            self._executor.note(TerminationReason.FAULT, uuid, "", "read")
        except (HungError, OSError) as error:
            self._executor.note(TerminationReason.FAULT, uuid, str(error), "read")

    def _request_ends(self, fault: GpuFault, clients: Collection[Process]) -> None:
        pods = self._pods()
        for process in clients:
            if (warning := fault_warning(fault, process, pods)) is not None:
                self._record(warning)
        requests = faulted_requests(fault, clients, pods, self._executor.sent, self._clock())
        if requests:
            self._requested.setdefault(fault.uuid, set()).update(identity(request.process) for request in requests)
        self._executor.submit(requests)

    def _faulted_clients(self, fault: GpuFault) -> list[Process]:
        """Blocks. A process that is younger than the fault has reused a client's PID."""
        listed = processes.read_all(fault.clients, self._proc)
        return [process for process in listed if processes.started_at(process) <= fault.since]

    def _any_runs(self, clients: Collection[Identity]) -> bool:
        """Blocks."""
        return any(read_start_of_running(pid, self._proc) == started for pid, started in clients)

    def _record_end(self, uuid: Uuid) -> None:
        """Records nothing of clients that ended before they got a signal."""
        self._requested.pop(uuid, None)
        pids = sorted({pid for pid, _ in self._signalled.pop(uuid)})
        if not pids:
            return
        note = f"GPU {uuid}: faulted clients were ended after faultTimeout: PID {', '.join(map(str, pids))}"
        regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        reason = EventReason.FAULTED_CLIENTS_ENDED
        self._record(Event(regarding, "Warning", reason, "EndClients", note, uuid, happened=True))


def _request(fault: GpuFault, process: Process, owner: tuple[Object, str], number: Signals) -> TerminationRequest:
    return TerminationRequest(
        TerminationReason.FAULT,
        fault.uuid,
        process,
        reference(owner[0], "v1", "Pod"),
        _container(owner),
        f", which still held GPU {fault.uuid} {fault.timeout:.0f} s after a fatal fault (faultTimeout of GpuShare "
        f"{fault.share}). Its CUDA contexts were lost with the fault.",
        signal=number,
        since=fault.since,
    )


def _container(owner: tuple[Object, str]) -> str:
    return f" (container {owner[1]})" if owner[1] else ""
