"""One GPU's CUDA clients, watched while pods depart: who is due, and is handed to be ended."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.api.gpunode import Uuid
from gpushare.node import processes
from gpushare.node.departing import Departing, decide, departure_of
from gpushare.node.ending import Cause, Endings
from gpushare.node.lane import HungError, Lane
from gpushare.node.lineage import ancestors, fatal_ancestor
from gpushare.node.processes import Process
from gpushare.nvml.types import Nvml, NvmlError

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NVML_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Due:
    """A client process that is to be ended now. `with_ancestor`: PID of the one that would take it along."""

    process: Process
    departing: Departing
    with_ancestor: int | None = None


class ClientGuard:
    def __init__(self, uuid: Uuid, nvml: Nvml, endings: Endings, proc: Path) -> None:
        self._uuid = uuid
        self._nvml = nvml
        self._endings = endings
        self._proc = proc
        self._nvml_lane = Lane(f"MPS clients of GPU {uuid}", NVML_SECONDS)
        self._retry_at: dict[tuple[int, int], float] = {}
        self._told = ""

    async def end_due(self, departing: Mapping[str, Sequence[Departing]], clock: Callable[[], float]) -> list[Due]:
        """Ends the clients of `departing` pods that are due; returns those that the daemon has ended."""
        ended: list[Due] = []
        trouble = ""
        try:
            due = await self._nvml_lane.call(self._due, departing, clock())
            if due:
                gone, trouble = await self._endings.end(self._uuid, [item.process for item in due], Cause.DEPARTURE)
                ended = [item for item in due if item.process in gone]
                self._retry_at |= {_key(item.process): clock() + RETRY_SECONDS for item in due if item not in ended}
        except (NvmlError, HungError) as error:
            trouble = str(error)
        if trouble and trouble != self._told:
            LOG.warning("clients of departing pods on GPU %s not ended yet, trying again: %s", self._uuid, trouble)
        if trouble or ended:
            self._told = trouble
        return ended

    def _due(self, departing: Mapping[str, Sequence[Departing]], now: float) -> list[Due]:
        """Those whose end is nearest first. Blocks."""
        listed = self._nvml.processes(self._uuid).mps_clients
        clients = processes.read_all((item.pid for item in listed), self._proc)
        keys = {_key(process) for process in clients}
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in keys}
        due = [self._judged(process, departing, now) for process in clients]
        return sorted((item for item in due if item is not None), key=lambda item: item.departing.kill_at)

    def _judged(self, process: Process, departing: Mapping[str, Sequence[Departing]], now: float) -> Due | None:
        if process.owner is None:
            return None
        leaves = departure_of(departing.get(process.owner.pod_uid, ()), process.owner)
        if leaves is None or self._retry_at.get(_key(process), now) > now or self._endings.asked(self._uuid, process):
            return None
        fatal = None
        if process.catches_sigterm:
            fatal = fatal_ancestor(ancestors(process.pid, process.owner, self._proc))
        ends_itself = process.catches_sigterm and fatal is None
        return Due(process, leaves, fatal) if decide(now, leaves.kill_at, ends_itself) == "terminate" else None


def _key(process: Process) -> tuple[int, int]:
    """A PID alone may belong to another process by the next look."""
    return process.pid, process.started
