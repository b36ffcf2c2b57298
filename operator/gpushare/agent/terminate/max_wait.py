"""Ends the clients that a change no longer waits for, once their share's `maxWait` is over.

Guarantees: only clients of a GPU whose assignment says `terminateClients` are ended, each once, through the GPU's MPS
daemon, so nobody else on the node is affected; events on their pods say so before and after; a hanging GPU holds up no
other. Does not end pods: a container that goes on, or that is started again, keeps its slot.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process.processes import Process
from gpushare.agent.reconcile.assignments import GpuPlan
from gpushare.agent.terminate.clients import NVML_SECONDS, GpuScans, pod_of, read_clients
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, reference
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.process.procfs import PROC

SCAN_SECONDS = 1.0


def expired_requests(gpu: GpuPlan, clients: Iterable[Process], pods: Mapping[str, Object]) -> list[TerminationRequest]:
    """Pure. Every client of the GPU, whosever it is. `pods`: this node's by uid."""
    return [_request(gpu, process, pod_of(process, pods)) for process in clients]


def expired_warnings(gpu: GpuPlan, clients: Iterable[Process], pods: Mapping[str, Object]) -> dict[str, Event]:
    """Pure. The events before the end, by the uids of the clients' pods."""
    owners = (owner for process in clients if (owner := pod_of(process, pods)) is not None)
    note = (
        f"maxWait of GpuShare {gpu.share} is over: the change that waited for the clients of GPU {gpu.uuid} is "
        "made now. Their CUDA contexts are ended through the MPS daemon; containers start again once it is made."
    )
    return {
        pod["metadata"]["uid"]: Event(
            reference(pod, "v1", "Pod"),
            "Warning",
            EventReason.MAX_WAIT_EXPIRED,
            "TerminateClient",
            note,
            gpu.uuid,
            happened=True,
        )
        for pod, _ in owners
    }


class MaxWaitEnforcer:
    """Follows the GPUs whose share's maxWait is over, and reads their clients."""

    def __init__(
        self,
        nvml: Nvml,
        expired: Callable[[], Collection[GpuPlan]],
        pods: Callable[[], Mapping[str, Object]],
        executor: TerminationExecutor,
        record: Callable[[Event], None],
        proc: Path = PROC,
    ) -> None:
        """`expired`: the GPUs of now whose plan ends their clients. `pods`: this node's by uid. `record`: takes an
        event, and never waits.
        """
        self._nvml = nvml
        self._expired = expired
        self._pods = pods
        self._executor = executor
        self._record = record
        self._proc = proc
        self._gpus: dict[Uuid, GpuPlan] = {}
        self._callers: dict[Uuid, BlockingCaller] = {}
        self._scans = GpuScans("maxWait of", self._scan)
        self._warned: set[tuple[Uuid, str]] = set()
        """Pairs of (GPU, pod uid)."""

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self.start_scans()
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            self._scans.cancel()

    def start_scans(self) -> list[asyncio.Task[None]]:
        """One for each expired GPU; returns those under way."""
        self._gpus = {gpu.uuid: gpu for gpu in self._expired()}
        self._warned = {key for key in self._warned if key[0] in self._gpus}
        return self._scans.start(self._gpus)

    async def _scan(self, uuid: Uuid) -> None:
        caller = self._callers.setdefault(uuid, BlockingCaller(f"MPS clients of GPU {uuid}", NVML_SECONDS))
        try:
            clients = await caller.call(self._clients, uuid)
        except (NvmlError, HungError, OSError) as error:
            self._executor.note(TerminationReason.MAX_WAIT, uuid, str(error), "read")
            return
        self._executor.note(TerminationReason.MAX_WAIT, uuid, "", "read")
        gpu, pods = self._gpus.get(uuid), self._pods()
        if gpu is None:
            return  # the change was given up meanwhile
        for pod_uid, warning in expired_warnings(gpu, clients, pods).items():
            if (uuid, pod_uid) not in self._warned:
                self._warned.add((uuid, pod_uid))
                self._record(warning)
        self._executor.submit(expired_requests(gpu, clients, pods))

    def _clients(self, uuid: Uuid) -> list[Process]:
        """Blocks. Without those whose end was asked for already."""
        clients = read_clients(self._nvml, uuid, self._proc)
        return [process for process in clients if not self._executor.was_asked(uuid, process)]


def _request(gpu: GpuPlan, process: Process, owner: tuple[Object, str] | None) -> TerminationRequest:
    return TerminationRequest(
        TerminationReason.MAX_WAIT,
        gpu.uuid,
        process,
        reference(owner[0], "v1", "Pod") if owner is not None else None,
        f" (container {owner[1] or 'unknown'})" if owner is not None else "",
        f" on GPU {gpu.uuid} through its MPS daemon: maxWait of GpuShare {gpu.share} is over.",
    )
