"""The node's GPUs as NVML shows them, polled; a GPU that is lost or hangs never holds up the others.

Guarantees: a view's `seen_at` is taken before NVML was asked, so what happened before that moment is in it. A GPU once
seen stays listed, as lost, until this process ends: whoever holds it must be told.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.api.gpunode import ComputeMode, Uuid
from gpushare.nvml.types import GpuInfo, GpuLostError, GpuProcesses, Nvml, NvmlError

LOG = logging.getLogger(__name__)
CALL_SECONDS = 5.0
"""NVML answers within milliseconds; a driver that takes this long has lost the GPU or is being unloaded."""

LOWEST_CLIENT_CEILING = 48


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU at `seen_at` (CLOCK_BOOTTIME seconds). `commands`: names of the `compute` processes, by PID."""

    info: GpuInfo
    mode: ComputeMode
    processes: GpuProcesses
    seen_at: float
    lost: bool = False
    commands: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverVersions:
    version: str
    cuda_version: str

    @property
    def client_ceiling(self) -> int:
        """MPS contexts on one GPU (NVIDIA's MPS documentation: 60 from release 590 on)."""
        major = self.version.split(".")[0]
        return 60 if major.isdecimal() and int(major) >= 590 else LOWEST_CLIENT_CEILING


class Inventory:
    def __init__(self, nvml: Nvml, clock: Callable[[], float], proc: Path = Path("/proc")) -> None:
        self.views: dict[Uuid, GpuView] = {}
        self.driver: DriverVersions | None = None
        self.error = ""
        """Why NVML as a whole did not answer last time; empty when it did."""
        self._nvml = nvml
        self._clock = clock
        self._proc = proc
        self._whole = BlockingCaller("NVML", CALL_SECONDS)
        self._lanes: dict[Uuid, BlockingCaller] = {}

    @property
    def client_ceiling(self) -> int:
        """MPS contexts on one GPU; before the driver was asked what every driver takes."""
        return self.driver.client_ceiling if self.driver else LOWEST_CLIENT_CEILING

    @property
    def simulated(self) -> bool:
        return self._nvml.simulated

    async def poll(self) -> None:
        """Looks at every GPU once. Never raises for what NVML does; changes `views`, `driver` and `error`."""
        try:
            infos = await self._whole.call(self._survey)
            self.error = ""
        except (NvmlError, HungError) as error:
            if self.error != str(error):
                LOG.warning("NVML does not answer: %s", error)
            self.error = str(error)
            infos = [view.info for view in self.views.values()]
        seen = {info.uuid for info in infos}
        looks = [self._look(info) for info in infos]
        views = {view.info.uuid: view for view in await asyncio.gather(*looks) if view is not None}
        gone = {uuid: replace(view, lost=True) for uuid, view in self.views.items() if uuid not in seen}
        self.views = gone | views

    async def set_mode(self, uuid: Uuid, mode: ComputeMode) -> None:
        """Errors: NvmlError, HungError."""
        await self._lane(uuid).call(self._nvml.set_compute_mode, uuid, mode)

    async def mode(self, uuid: Uuid) -> ComputeMode:
        """Errors: NvmlError, HungError."""
        return await self._lane(uuid).call(self._nvml.compute_mode, uuid)

    def _survey(self) -> list[GpuInfo]:
        self.driver = DriverVersions(self._nvml.driver_version(), self._nvml.cuda_version())
        return self._nvml.gpus()

    async def _look(self, info: GpuInfo) -> GpuView | None:
        known = self.views.get(info.uuid)
        try:
            return await self._lane(info.uuid).call(self._see, info)
        except (GpuLostError, HungError) as error:
            if known is None or not known.lost:
                LOG.warning("GPU %s is lost: %s", info.uuid, error)
            return replace(known, lost=True) if known else _never_seen(info)
        except NvmlError as error:
            LOG.warning("GPU %s: %s", info.uuid, error)
            return known

    def _see(self, info: GpuInfo) -> GpuView:
        seen_at = self._clock()
        processes = self._nvml.processes(info.uuid)
        commands = {process.pid: self._command(process.pid) for process in processes.compute}
        return GpuView(info, self._nvml.compute_mode(info.uuid), processes, seen_at, commands=commands)

    def _command(self, pid: int) -> str:
        """The program's file name, from its command line: /proc/PID/comm is cut at 15 characters and can be set."""
        try:
            words = (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        paths = [Path(word.decode(errors="replace")).name for word in words if word]
        return next((path for path in paths if path.startswith("nvidia-cuda-mps")), paths[0] if paths else "")

    def _lane(self, uuid: Uuid) -> BlockingCaller:
        return self._lanes.setdefault(uuid, BlockingCaller(f"NVML {uuid}", CALL_SECONDS))


def _never_seen(info: GpuInfo) -> GpuView:
    return GpuView(info, ComputeMode.DEFAULT, GpuProcesses((), ()), seen_at=0.0, lost=True)
