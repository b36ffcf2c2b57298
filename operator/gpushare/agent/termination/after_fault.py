"""Clients that linger after a fatal fault, ended once the share's faultTimeout is over.

One idle notebook would keep the GPU from everybody for ever, since a server in FAULT takes no new client until its last
client has ended.

Guarantees: only processes that the server itself lists as clients while it is in FAULT, and that were there before the
fault, are ended; none before the timeout, and none without a word on its pod before and after. By SIGTERM, and after
its pod's grace period by SIGKILL, not through the daemon: in FAULT `terminate_client` hangs that until the process has
ended (measured on H200). The signals harm nobody: the contexts of all clients are lost already (700 or 719 in each of
them, measured), so that no kernel is cut off. What is of no pod is never signalled.

Clients that a fatal fault left behind, and what comes next for each. Pure: times are CLOCK_BOOTTIME seconds.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Literal

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes, signals
from gpushare.agent.process.processes import Process
from gpushare.agent.termination.departing import container_name
from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.kube import events
from gpushare.kube.client import Object
from gpushare.kube.event_recorder import Event
from gpushare.mps.clock import boot_clock
from gpushare.mps.wire import FRESH_SECONDS, DaemonState

LOG = logging.getLogger(__name__)

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A GPU of `share` whose server was hit at `since` and waits for `clients`, by PID. `timeout`: seconds."""

    uuid: Uuid
    share: ShareName
    since: float
    timeout: float
    clients: tuple[int, ...]


def faults_of(states: Mapping[Uuid, DaemonState], shares: Mapping[ShareName, GpuShare], now: float) -> list[GpuFault]:
    """By the fresh word of supervisors whose share is known: a timeout that is not known is not over."""
    return [
        GpuFault(uuid, state.share, state.fault_since, float(share.fault_timeout_seconds), tuple(state.faulted_clients))
        for uuid, state in states.items()
        if (share := shares.get(state.share)) is not None
        and state.fault_since is not None
        and state.faulted_clients
        and now - state.heartbeat <= FRESH_SECONDS
    ]


def step(now: float, due: float, sent: Mapping[Signals, float], grace: float | None) -> Signals | None:
    """The signal that comes next. `due`: when the timeout is over. `sent`: when each was sent first. `grace`: of its
    pod, None: of no pod.
    """
    if now < due or grace is None:
        return None
    if Signals.SIGTERM not in sent:
        return Signals.SIGTERM
    return Signals.SIGKILL if Signals.SIGKILL not in sent and now >= sent[Signals.SIGTERM] + grace else None


def started_at(process: Process) -> float:
    """When it started, in CLOCK_BOOTTIME seconds (proc(5): start times count from boot)."""
    return process.started / TICKS


LOOK_SECONDS = 1.0
PROC_SECONDS = 5.0


class FaultedClientReaper:
    def __init__(
        self,
        node: str,
        faults: Callable[[], Collection[GpuFault]],
        pods: Callable[[], Mapping[str, Object]],
        tell: Callable[[Event], None],
        clock: Callable[[], float] = boot_clock,
        proc: Path = Path("/proc"),
    ) -> None:
        """`faults`: those of now, by a fresh word of their supervisors. `pods`: this node's by uid."""
        self._node = node
        self._faults = faults
        self._pods = pods
        self._tell = tell
        self._clock = clock
        self._proc = proc
        self._lane = BlockingCaller("processes after a fault", PROC_SECONDS)
        self._sent: dict[tuple[int, int], dict[signal.Signals, float]] = {}
        """When each signal was sent first, by PID and start time."""
        self._acted: dict[Uuid, set[int]] = {}
        self._trouble = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        faults = self._faults()
        try:
            for fault in faults:
                await self._attend(fault)
        except HungError as error:
            self._note(str(error))
        for uuid in self._acted.keys() - {fault.uuid for fault in faults}:
            self._tell_over(uuid, self._acted.pop(uuid))
        if not faults:
            self._sent.clear()

    async def _attend(self, fault: GpuFault) -> None:
        lingering = await self._lane.call(self._read, fault)
        due = {process: self._step(fault, process) for process in lingering}
        for process in lingering:
            self._warn(fault, process)
        trouble = ""
        for process, number in due.items():
            if number is not None:
                trouble = self._signal(fault, process, number) or trouble
        self._note(trouble)

    def _read(self, fault: GpuFault) -> list[Process]:
        """Blocks. A PID that is younger than the fault is somebody else's by now."""
        return [it for it in processes.read_all(fault.clients, self._proc) if started_at(it) <= fault.since]

    def _step(self, fault: GpuFault, process: Process) -> signal.Signals | None:
        sent = self._sent.get((process.pid, process.started), {})
        pod = self._pod(process)
        grace = None if pod is None else float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        return step(self._clock(), fault.since + fault.timeout, sent, grace)

    def _signal(self, fault: GpuFault, process: Process, number: signal.Signals) -> str:
        """What went wrong, if anything did."""
        try:
            sent = signals.send(process, number, self._proc)
        except OSError as error:
            return f"process {process.pid} cannot be signalled: {error.strerror or error}"
        self._sent.setdefault((process.pid, process.started), {})[number] = self._clock()
        self._acted.setdefault(fault.uuid, set()).add(process.pid)
        if sent:
            self._tell_end(fault, process, number)
        return ""

    def _pod(self, process: Process) -> Object | None:
        return self._pods().get(process.owner.pod_uid) if process.owner else None

    def _warn(self, fault: GpuFault, process: Process) -> None:
        self._event(
            process,
            EventReason.CLIENT_FAULTED,
            f"A fatal fault on GPU {fault.uuid}, its own or that of one of its neighbours, has taken the CUDA contexts "
            f"of process {process.pid}{self._container(process)}. Until it ends, the GPU takes no new client: restart "
            f"it. It is ended {fault.timeout:.0f} s after the fault (faultTimeout of GpuShare {fault.share}).",
        )

    def _tell_end(self, fault: GpuFault, process: Process, number: signal.Signals) -> None:
        self._event(
            process,
            EventReason.PROCESS_ENDED,
            f"Sent {number.name} to it: process {process.pid}{self._container(process)} still held GPU {fault.uuid} "
            f"{fault.timeout:.0f} s after a fatal fault (faultTimeout of GpuShare {fault.share}). Its CUDA contexts "
            "were lost with the fault.",
        )

    def _tell_over(self, uuid: Uuid, pids: set[int]) -> None:
        told = ", ".join(map(str, sorted(pids)))
        note = f"GPU {uuid}: the clients that a fatal fault had left behind were ended after faultTimeout: PID {told}"
        regarding = {"apiVersion": names.API_VERSION, "kind": "GpuNode", "name": self._node}
        reason = EventReason.FAULTED_CLIENTS_ENDED
        self._tell(Event(regarding, "Warning", reason, "EndClients", note, uuid, happened=True))

    def _event(self, process: Process, reason: EventReason, note: str) -> None:
        pod = self._pod(process)
        if pod is None:
            return
        kind: Literal["Normal", "Warning"] = "Warning"
        subject = f"{process.pid}/{process.started}"
        self._tell(Event(events.reference(pod, "v1", "Pod"), kind, reason, "EndFaultedClient", note, subject))

    def _container(self, process: Process) -> str:
        pod = self._pod(process)
        name = container_name(pod, process.owner.container_id) if pod is not None and process.owner else ""
        return f" (container {name})" if name else ""

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            LOG.warning("clients that a fault left behind are not ended yet, trying again: %s", trouble)
        self._trouble = trouble
