"""What a reading of NVML says about one GPU, and about the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuInfo, GpuProcesses

LOWEST_CLIENT_CEILING = 48
"""MPS contexts on one GPU that every supported driver takes."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU at `seen_at` (CLOCK_BOOTTIME seconds). `commands`: names of the `compute` processes, by PID."""

    info: GpuInfo
    mode: ComputeMode
    processes: GpuProcesses
    seen_at: float
    lost: bool = False
    commands: Mapping[int, str] = field(default_factory=dict)
    utilization: int | None = None
    """Percent; None: the GPU reports none."""
    free_mib: int | None = None
    """MiB that nobody has allocated; None: it is not known."""


@dataclass(frozen=True, slots=True)
class DriverVersions:
    version: str
    cuda_version: str

    @property
    def client_ceiling(self) -> int:
        """MPS contexts on one GPU (NVIDIA's MPS documentation: 60 from release 590 on)."""
        major = self.version.split(".")[0]
        return 60 if major.isdecimal() and int(major) >= 590 else LOWEST_CLIENT_CEILING
