"""What a scenario may ask of the machine.

Arrays are float64 NumPy arrays on the host side; times in ms, memory in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class GpuError(Exception):
    """The GPU or CUDA refused. `code` is CUDA's runtime error number (see CUDA's cudaError_t)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"CUDA error {code}: {message}")
        self.code = code


class OutOfMemoryError(GpuError):
    """Error 2: the allocation is above this client's limit, or the GPU is full."""


TERMINATED_BY_DAEMON = 810
"""cudaErrorMpsClientTerminated: the MPS control daemon ended this client so that its neighbours go on."""


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU as this process sees it; memory in bytes."""

    product: str
    uuid: str
    sms: int | None
    """SMs visible to this process: under an MPS thread limit fewer than the GPU has."""
    total_sms: int | None
    """SMs of the whole GPU, where NVML or the simulation tells."""
    free: int
    total: int


class Backend(Protocol):
    @property
    def name(self) -> str:
        """cupy, numpy, or `numpy on a simulated GPU`: printed with every figure."""
        ...

    @property
    def simulated(self) -> bool: ...

    def device(self) -> Device: ...

    def try_allocate(self, size: int) -> bool:
        """Allocate `size` bytes and free them again; False where it is refused for memory."""
        ...

    def spin(self, milliseconds: float) -> None:
        """Launch a kernel that occupies the GPU for about that long; returns before it ends."""
        ...

    def synchronize(self) -> None:
        """Wait for everything launched. Raises GpuError when any of it failed."""
        ...

    def sum_of_squares(self, vector: Vector) -> float: ...

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        """One launch for all rows of `matrix` (rows, columns)."""
        ...

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        """One launch per vector, spread over `streams` streams of this process."""
        ...

    def close(self) -> None: ...
