"""Terminates the clients that a change no longer waits for, once their share's `maxWait` is over.

Guarantees: only clients of a GPU whose assignment says `terminateClients` are terminated, each once, through the GPU's
MPS daemon, so nobody else on the node is affected; events on their pods say so before and after; a hanging GPU holds up
no other. Does not end pods: a container that goes on, or that is started again, keeps its slot.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.agent.terminate.owners import pod_of
from gpushare.agent.terminate.terminate import ClientTerminator, TerminationCause
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, EventType, reference
from gpushare.messages.log_on_change import LogOnChange
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.process.procfs import PROC

LOG = logging.getLogger(__name__)
SCAN_SECONDS = 1.0
NVML_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ExpiredGpu:
    """A GPU of `share` whose clients are to be terminated."""

    uuid: Uuid
    share: ShareName


class MaxWaitEnforcer:
    def __init__(
        self,
        nvml: Nvml,
        expired: Callable[[], Collection[ExpiredGpu]],
        pods: Callable[[], Mapping[str, Object]],
        terminator: ClientTerminator,
        record: Callable[[Event], None],
        proc: Path = PROC,
    ) -> None:
        """`expired`: those of now. `pods`: this node's by uid. `record`: takes an event, and never waits."""
        self._nvml = nvml
        self._expired = expired
        self._pods = pods
        self._terminator = terminator
        self._record = record
        self._proc = proc
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._scans: dict[Uuid, asyncio.Task[None]] = {}
        self._warned: set[tuple[Uuid, str]] = set()
        """(GPU, pod uid)."""
        self._problems = LogOnChange(LOG)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self.start_scans()
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            for task in self._scans.values():
                task.cancel()

    def start_scans(self) -> list[asyncio.Task[None]]:
        """One for each expired GPU; returns those under way."""
        expired = self._expired()
        self._warned = {key for key in self._warned if any(key[0] == gpu.uuid for gpu in expired)}
        for gpu in expired:
            if gpu.uuid not in self._scans:
                self._scans[gpu.uuid] = asyncio.create_task(self._scan(gpu), name=f"maxWait of {gpu.uuid}")
        return list(self._scans.values())

    async def _scan(self, gpu: ExpiredGpu) -> None:
        try:
            caller = self._callers.setdefault(gpu.uuid, BlockingCaller(f"MPS clients of GPU {gpu.uuid}", NVML_SECONDS))
            clients = await caller.call(self._clients, gpu.uuid)
            due = [process for process in clients if not self._terminator.was_asked(gpu.uuid, process)]
            for process in due:
                self._warn(gpu, process)
            terminated, problem = await self._terminator.terminate(gpu.uuid, due, TerminationCause.CHANGE)
            self._note(problem)
            for process in terminated:
                self._record_termination(gpu, process)
        except (NvmlError, HungError) as error:
            self._note(str(error))
        finally:
            del self._scans[gpu.uuid]

    def _clients(self, uuid: Uuid) -> list[Process]:
        """Blocks."""
        return processes.read_all((entry.pid for entry in self._nvml.processes(uuid).mps_clients), self._proc)

    def _note(self, problem: str) -> None:
        if problem:
            self._problems.log("clients whose share's maxWait is over are not ended yet, trying again: %s", problem)
        else:
            self._problems.clear()

    def _warn(self, gpu: ExpiredGpu, process: Process) -> None:
        """Once for each pod and GPU."""
        owner = pod_of(process, self._pods())
        if owner is None or (gpu.uuid, owner[0]["metadata"]["uid"]) in self._warned:
            return
        pod, _ = owner
        self._warned.add((gpu.uuid, pod["metadata"]["uid"]))
        note = (
            f"maxWait of GpuShare {gpu.share} is over: the change that waited for the clients of GPU {gpu.uuid} is "
            "made now. Their CUDA contexts are ended through the MPS daemon; containers start again once it is made."
        )
        self._record_event(pod, "Warning", EventReason.MAX_WAIT_EXPIRED, note, gpu.uuid)

    def _record_termination(self, gpu: ExpiredGpu, process: Process) -> None:
        owner = pod_of(process, self._pods())
        if owner is None:
            return
        pod, container = owner
        note = (
            f"Ended the CUDA contexts of process {process.pid} (container {container or 'unknown'}) on GPU {gpu.uuid} "
            f"through its MPS daemon: maxWait of GpuShare {gpu.share} is over."
        )
        self._record_event(pod, "Normal", EventReason.CLIENT_TERMINATED, note, f"{process.pid}/{process.started}")

    def _record_event(self, pod: Object, kind: EventType, reason: EventReason, note: str, subject: str) -> None:
        regarding = reference(pod, "v1", "Pod")
        self._record(Event(regarding, kind, reason, "TerminateClient", note, subject, happened=True))
