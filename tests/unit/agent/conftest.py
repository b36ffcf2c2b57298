"""An NVML whose GPUs a test sets, loses and hangs, and a node with an agent."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuInfo, GpuList, GpuLostError, GpuProcess, GpuProcesses, NvmlError, Xid
from tests.unit.agent.fake_node import FakeNode


def info(index: int = 0) -> GpuInfo:
    return GpuInfo(f"GPU-{index}", index, index, "NVIDIA H200", 143155, 132, "9.0", None, False)


@dataclass
class FakeNvml:
    infos: list[GpuInfo] = field(default_factory=lambda: [info(0), info(1)])
    modes: dict[str, ComputeMode] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)
    clients: dict[str, list[GpuProcess]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    hanging: set[str] = field(default_factory=set)
    free: dict[str, int] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    unloaded: bool = False
    version: str = "580.159.04"
    simulated: bool = True
    hangs: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def unplug(self, index: int) -> None:
        self.infos = [info(other) for other in (0, 1) if other != index]

    def driver_version(self) -> str:
        if self.unloaded:
            raise NvmlError("Driver Not Loaded")
        return self.version

    def cuda_version(self) -> str:
        return "13.0"

    def gpus(self) -> GpuList:
        return GpuList(list(self.infos), list(self.unreadable))

    def compute_mode(self, uuid: str) -> ComputeMode:
        self._ask(uuid)
        return self.modes.get(uuid, ComputeMode.DEFAULT)

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._ask(uuid)
        self.modes[uuid] = mode

    def processes(self, uuid: str) -> GpuProcesses:
        self._ask(uuid)
        clients = tuple(self.clients.get(uuid, ()))
        return GpuProcesses(clients, (GpuProcess(self.servers[uuid], 66),) if uuid in self.servers else ())

    def free_memory_mib(self, uuid: str) -> int | None:
        self._ask(uuid)
        return self.free.get(uuid)

    def utilization(self, uuid: str) -> int | None:
        self._ask(uuid)
        return 40

    def wait_for_xids(self, seconds: float) -> list[Xid]:
        threading.Event().wait(seconds)
        return []

    def close(self) -> None:
        pass

    def _ask(self, uuid: str) -> None:
        if self.unloaded:
            raise NvmlError("Driver Not Loaded")
        if uuid in self.lost:
            raise GpuLostError("GPU is lost")
        if uuid in self.hanging:
            self.hangs.set()
            self.release.wait(30)


@pytest.fixture
def nvml() -> FakeNvml:
    """Two H200, GPU-0 and GPU-1."""
    return FakeNvml()


@pytest.fixture
async def node(tmp_path: Path, nvml: FakeNvml) -> AsyncIterator[FakeNode]:
    node = FakeNode(tmp_path, nvml)
    mps = asyncio.create_task(node.mps())
    node.start()
    yield node
    await node.stop()
    mps.cancel()
