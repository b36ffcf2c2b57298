"""The client processes of a GPU, whose they are, and one scan of each GPU at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Object
from gpushare.kube.pods import container_name
from gpushare.nvml.types import Nvml
from gpushare.process.procfs import owner_among

NVML_SECONDS = 2.0


def read_clients(nvml: Nvml, uuid: Uuid, proc: Path, served: Collection[int] = ()) -> list[Process]:
    """The MPS clients that NVML lists, and `served`: those that the MPS server lists, by the PIDs that they sent. A
    process whose PID another one forged is ended in its place. Blocks. NvmlError: the GPU does not answer.
    """
    pids = dict.fromkeys((*(entry.pid for entry in nvml.processes(uuid).mps_clients), *served))
    return processes.read_all(pids, proc)


def pod_of(process: Process, pods: Mapping[str, Object]) -> tuple[Object, str] | None:
    """Returns (the pod, the container's name); the name is empty where the pod's status does not show it. None: the
    process belongs to no pod.

    `pods`: this node's by uid.
    """
    owner = owner_among(process.owners, pods)
    if owner is None:
        return None
    pod = pods[owner.pod_uid]
    return pod, container_name(pod, owner.container_id, owner.container)


class GpuScans:
    """Runs one scan of each GPU at a time. GPUs do not wait for one another; a GPU for which a scan is asked while one
    is under way is scanned once more right after.
    """

    def __init__(self, name: str, scan: Callable[[Uuid], Awaitable[None]]) -> None:
        self._name = name
        self._scan = scan
        self._under_way: dict[Uuid, asyncio.Task[None]] = {}
        self._again: set[Uuid] = set()

    def start(self, uuids: Iterable[Uuid]) -> list[asyncio.Task[None]]:
        """Returns the scans under way, of all GPUs."""
        for uuid in uuids:
            if uuid in self._under_way:
                self._again.add(uuid)
            else:
                self._under_way[uuid] = asyncio.create_task(self._run(uuid), name=f"{self._name} {uuid}")
        return list(self._under_way.values())

    def cancel(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    async def _run(self, uuid: Uuid) -> None:
        try:
            await self._scan(uuid)
            while uuid in self._again:
                self._again.discard(uuid)
                await self._scan(uuid)
        finally:
            self._again.discard(uuid)
            del self._under_way[uuid]
