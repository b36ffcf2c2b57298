"""What the rest of gpushare sees of NVML: plain values, no handles, no library types.

Every call may block on the driver, so callers run them off their event loop and with a time limit.
"""

from dataclasses import dataclass
from typing import Protocol

from gpushare.api.gpunode import ComputeMode


class NvmlError(Exception):
    """NVML refused or failed; the text is NVML's own."""


class GpuLostError(NvmlError):
    """The GPU fell off the bus or needs a reset: nothing more can be asked of it."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU as it is found; memory in MiB."""

    uuid: str
    index: int
    minor: int
    product: str
    memory_mib: int
    sms: int
    compute_capability: str
    numa_node: int | None
    mig_enabled: bool


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a context on a GPU. `pid` is in the caller's PID namespace; memory in MiB."""

    pid: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """All compute processes of a GPU.

    `mps_clients` are those that NVML lists as MPS compute processes (nvidia-smi type M+C); `compute` are the others
    (type C): the MPS server itself, and whatever bypasses MPS.
    """

    mps_clients: tuple[GpuProcess, ...]
    compute: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver logged of a GPU, by its number in NVIDIA's catalogue of Xids."""

    uuid: str
    number: int


class Nvml(Protocol):
    """Errors: NvmlError; GpuLostError for a GPU that is gone."""

    @property
    def simulated(self) -> bool: ...

    def driver_version(self) -> str: ...

    def cuda_version(self) -> str:
        """CUDA version of the driver, such as 13.0."""
        ...

    def gpus(self) -> list[GpuInfo]:
        """By NVML index; a lost GPU is left out."""
        ...

    def compute_mode(self, uuid: str) -> ComputeMode: ...

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Needs root. Takes effect for contexts created from now on."""
        ...

    def processes(self, uuid: str) -> GpuProcesses: ...

    def wait_for_xids(self, seconds: float) -> list[Xid]:
        """Critical Xids of any GPU, as soon as there is one; none when the time is over. Waits without a lock.

        NvmlError: also where no GPU tells of them. For one caller at a time.
        """
        ...

    def close(self) -> None: ...
