"""One GPU's CUDA clients, watched while pods depart: who is due, ended once, through the GPU's own daemon."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpushare.api.gpunode import Uuid
from gpushare.mps.control import ControlError, ControlTimeoutError, RefusedError
from gpushare.node import processes
from gpushare.node.departing import Departing, decide
from gpushare.node.lane import HungError, Lane
from gpushare.node.processes import Process
from gpushare.nvml.types import Nvml, NvmlError

LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NVML_SECONDS = 2.0
CONTROL_SECONDS = 30.0
"""For all clients of one GPU that are due. A wedged daemon is given up after its first command's own limit."""


class Control(Protocol):
    """What is asked of gpushare.mps.control.ControlProgram, with its errors."""

    def server_list(self) -> list[int]: ...

    def terminate_client(self, server: int, pid: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Due:
    """A client process that is to be ended now."""

    process: Process
    departing: Departing


class ClientGuard:
    def __init__(self, uuid: Uuid, nvml: Nvml, control: Callable[[Uuid], Control], proc: Path) -> None:
        self._uuid = uuid
        self._nvml = nvml
        self._control = control
        self._proc = proc
        self._nvml_lane = Lane(f"MPS clients of GPU {uuid}", NVML_SECONDS)
        self._control_lane = Lane(f"MPS daemon of GPU {uuid}", CONTROL_SECONDS)
        self._ended: set[tuple[int, int]] = set()
        self._retry_at: dict[tuple[int, int], float] = {}
        self._told = ""

    async def end_due(self, departing: Mapping[str, Departing], clock: Callable[[], float]) -> list[Due]:
        """Ends the clients of `departing` pods that are due; returns those that the daemon has ended."""
        ended: list[Due] = []
        trouble = ""
        try:
            due = self._due(await self._nvml_lane.call(self._clients), departing, clock())
            if due:
                ended, trouble = await self._control_lane.call(self._end, due)
                self._record(due, ended, clock())
        except (NvmlError, HungError) as error:
            trouble = str(error)
        if trouble and trouble != self._told:
            LOG.warning("clients of departing pods on GPU %s not ended yet, trying again: %s", self._uuid, trouble)
        if trouble or ended:
            self._told = trouble
        return ended

    def _clients(self) -> list[Process]:
        listed = [processes.read(item.pid, self._proc) for item in self._nvml.processes(self._uuid).mps_clients]
        return [process for process in listed if process is not None]

    def _due(self, listed: list[Process], departing: Mapping[str, Departing], now: float) -> list[Due]:
        """Those whose end is nearest first. What NVML lists no more is forgotten: it may come back as a new client."""
        keys = {_key(process) for process in listed}
        self._ended &= keys
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in keys}
        due = []
        for process in listed:
            pod = departing.get(process.owner.pod_uid) if process.owner else None
            if pod is None or _key(process) in self._ended or self._retry_at.get(_key(process), now) > now:
                continue
            if decide(now, pod.kill_at, process.catches_sigterm) == "terminate":
                due.append(Due(process, pod))
        return sorted(due, key=lambda item: item.departing.kill_at)

    def _end(self, due: list[Due]) -> tuple[list[Due], str]:
        """Those ended, and what went wrong with others. Blocks."""
        control = self._control(self._uuid)
        ended: list[Due] = []
        trouble = ""
        try:
            servers = control.server_list()
            for item in due:
                try:
                    if self._end_one(control, servers, item.process):
                        ended.append(item)
                except RefusedError as error:
                    trouble = str(error)
        except ControlError as error:
            trouble = str(error)
        return ended, trouble

    def _end_one(self, control: Control, servers: list[int], process: Process) -> bool:
        if processes.read_start_time(process.pid, self._proc) != process.started:
            return False
        try:
            return any(control.terminate_client(server, process.pid) for server in servers)
        except ControlTimeoutError:
            # It may have been heard, and a second one for the same process hangs the daemon until that has ended.
            self._ended.add(_key(process))
            raise

    def _record(self, due: list[Due], ended: list[Due], now: float) -> None:
        self._ended |= {_key(item.process) for item in ended}
        self._retry_at |= {_key(item.process): now + RETRY_SECONDS for item in due if item not in ended}


def _key(process: Process) -> tuple[int, int]:
    """A PID alone may belong to another process by the next look."""
    return process.pid, process.started
