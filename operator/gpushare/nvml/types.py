"""NVML for the rest of gpushare: plain values, no handles, no types of the library.

Each call may block in the driver, so callers run it outside of their event loop and with a time limit.
"""

from dataclasses import dataclass, field
from typing import Protocol

from gpushare.api.compute_mode import ComputeMode

TOLERANCE_MIB = 128
"""How much more than MPS counts NVML may show of a process. MPS counts a context at 145 MiB (4 GiB limit, 25 % of the
threads, H200) that NVML showed with 148 to 218 MiB, by the kernels loaded; memory comes in pages of 2 MiB, and NVML's
figure is cut to whole MiB here. So a process within its limit may show 75 MiB more than the limit; one that escaped it
shows gigabytes."""


class NvmlError(Exception):
    """NVML refused or failed; the text is NVML's own."""


class GpuLostError(NvmlError):
    """The GPU fell off the bus or needs a reset."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU. Memory in MiB."""

    uuid: str
    index: int
    minor: int
    product: str
    memory_mib: int
    sms: int
    compute_capability: str
    numa_node: int | None
    mig_enabled: bool
    nvlinked: frozenset[str] = frozenset()
    """UUIDs of the GPUs that it reaches by NVLink, also through an NVSwitch; empty too where NVML does not say."""


@dataclass(frozen=True, slots=True)
class GpuList:
    """The node's GPUs that NVML describes, and a sentence about each other one that it counts and that is not lost."""

    infos: list[GpuInfo]
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a context on a GPU. `pid` is in the caller's PID namespace; memory in MiB."""

    pid: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """All compute processes of a GPU.

    `mps_clients`: those that NVML lists as MPS compute processes (nvidia-smi type M+C). `compute`: the others (type C),
    which are the MPS server and non-MPS processes.
    """

    mps_clients: tuple[GpuProcess, ...]
    compute: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class Xid:
    """An error of a GPU that the driver logged, with its number in NVIDIA's catalogue of Xids."""

    uuid: str
    number: int


class Nvml(Protocol):
    """Every call may raise NvmlError, and GpuLostError for a lost GPU."""

    @property
    def simulated(self) -> bool: ...

    def driver_version(self) -> str: ...

    def cuda_version(self) -> str:
        """The driver's CUDA version, such as 13.0."""
        ...

    def gpus(self) -> GpuList:
        """All GPUs except lost ones, by NVML index."""
        ...

    def compute_mode(self, uuid: str) -> ComputeMode: ...

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Needs root. Applies to contexts created from now on."""
        ...

    def processes(self, uuid: str) -> GpuProcesses: ...

    def free_memory_mib(self, uuid: str) -> int | None:
        """MiB that nobody has allocated. None: it is not known, as of a simulated driver of an earlier release."""
        ...

    def utilization(self, uuid: str) -> int | None:
        """Percent of the last sample period (at most a second) in which one kernel or more ran on the GPU, whatever
        part of its SMs they took. None: the GPU reports none, as in MIG mode.
        """
        ...

    def wait_for_xids(self, seconds: float) -> list[Xid]:
        """Critical Xids of any GPU, as soon as there is one; empty after `seconds`. Waits without a lock.

        Raises NvmlError also if no GPU reports Xids. For one caller at a time.
        """
        ...

    def close(self) -> None: ...
