"""The end of clients that a change no longer waits for: their share's maxWait is over, as its owner asked for.

Guarantees: only clients of a GPU whose assignment says `endClients` are ended; their pods are told before and after, by
events; each process is asked once, through the GPU's daemon, so that nobody else on the node is touched; a hanging GPU
holds up no other. Does not end pods: a container that goes on, or that is started again, keeps its slot.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process
from gpushare.agent.termination.departing import container_name
from gpushare.agent.termination.terminate import ClientTerminator, TerminationCause
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube import events
from gpushare.kube.client import Object
from gpushare.kube.event_recorder import Event
from gpushare.nvml.types import Nvml, NvmlError

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
NVML_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ExpiredGpu:
    """A GPU of `share` whose clients are to be ended."""

    uuid: Uuid
    share: ShareName


class MaxWaitEnforcer:
    def __init__(
        self,
        nvml: Nvml,
        expired: Callable[[], Collection[ExpiredGpu]],
        pods: Callable[[], Mapping[str, Object]],
        endings: ClientTerminator,
        tell: Callable[[Event], None],
        proc: Path = Path("/proc"),
    ) -> None:
        """`pods`: this node's by uid. `tell`: takes what becomes an event, and never waits."""
        self._nvml = nvml
        self._expired = expired
        self._pods = pods
        self._endings = endings
        self._tell = tell
        self._proc = proc
        self._lanes: dict[Uuid, BlockingCaller] = {}
        self._looks: dict[Uuid, asyncio.Task[None]] = {}
        self._warned: set[tuple[Uuid, str]] = set()
        self._trouble = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._looks.values():
                task.cancel()

    def _look(self) -> None:
        expired = self._expired()
        self._warned = {key for key in self._warned if any(key[0] == item.uuid for item in expired)}
        for item in expired:
            if item.uuid not in self._looks:
                self._looks[item.uuid] = asyncio.create_task(self._end(item), name=f"maxWait of {item.uuid}")

    async def _end(self, item: ExpiredGpu) -> None:
        try:
            lane = self._lanes.setdefault(item.uuid, BlockingCaller(f"MPS clients of GPU {item.uuid}", NVML_SECONDS))
            clients = await lane.call(self._clients, item.uuid)
            due = [process for process in clients if not self._endings.asked(item.uuid, process)]
            for process in due:
                self._warn(item, process)
            ended, trouble = await self._endings.end(item.uuid, due, TerminationCause.CHANGE)
            self._note(trouble)
            for process in ended:
                self._ended(item, process)
        except (NvmlError, HungError) as error:
            self._note(str(error))
        finally:
            del self._looks[item.uuid]

    def _clients(self, uuid: Uuid) -> list[Process]:
        """Blocks."""
        return processes.read_all((entry.pid for entry in self._nvml.processes(uuid).mps_clients), self._proc)

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            LOG.warning("clients whose share's maxWait is over are not ended yet, trying again: %s", trouble)
        self._trouble = trouble

    def _warn(self, item: ExpiredGpu, process: Process) -> None:
        """Once for each pod and GPU."""
        pod = self._pod(process)
        if pod is None or (item.uuid, pod["metadata"]["uid"]) in self._warned:
            return
        self._warned.add((item.uuid, pod["metadata"]["uid"]))
        text = (
            f"maxWait of GpuShare {item.share} is over: the change that waited for the clients of GPU {item.uuid} is "
            "made now. Their CUDA contexts are ended through the MPS daemon; containers start again once it is made."
        )
        self._event(pod, "Warning", EventReason.MAX_WAIT_EXPIRED, text, item.uuid)

    def _ended(self, item: ExpiredGpu, process: Process) -> None:
        pod = self._pod(process)
        if pod is None:
            return
        container = container_name(pod, process.owner.container_id if process.owner else "") or "unknown"
        text = (
            f"Ended the CUDA contexts of process {process.pid} (container {container}) on GPU {item.uuid} through its "
            f"MPS daemon: maxWait of GpuShare {item.share} is over."
        )
        self._event(pod, "Normal", EventReason.CLIENT_TERMINATED, text, f"{process.pid}/{process.started}")

    def _pod(self, process: Process) -> Object | None:
        return self._pods().get(process.owner.pod_uid) if process.owner else None

    def _event(
        self, pod: Object, kind: Literal["Normal", "Warning"], reason: EventReason, text: str, subject: str
    ) -> None:
        regarding = events.reference(pod, "v1", "Pod")
        self._tell(Event(regarding, kind, reason, "TerminateClient", text, subject, happened=True))
