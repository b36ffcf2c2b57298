"""What a scenario may ask of the machine.

Vectors are float64, Floats float32 NumPy arrays on the host side; times in ms, memory in bytes. Work is queued on
lanes: each is a stream of its own, counted from 0. Every call that touches the GPU raises GpuError, and once one error
has ended the context, so does every later call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend.work import Floats, Peaks, Work

Vector = NDArray[np.float64]
Field = NDArray[np.float64]
"""Two dimensions: rows, columns."""


class GpuError(Exception):
    """The GPU or CUDA refused. `code` is CUDA's runtime error number (see CUDA's cudaError_t)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"CUDA error {code}: {message}")
        self.code = code


class OutOfMemoryError(GpuError):
    """Error 2: the allocation is above this client's limit, or the GPU is full."""


class UnsupportedError(ValueError):
    """This backend has nothing that could do it. The text says what to do instead."""


TERMINATED_BY_DAEMON = 810
"""cudaErrorMpsClientTerminated: the MPS control daemon ended this client so that its neighbours go on."""


class Fault(StrEnum):
    ILLEGAL_ADDRESS = "illegal-address"
    TRAP = "trap"
    ASSERT = "assert"


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


@dataclass(frozen=True, slots=True)
class Span:
    """When one launch ran, by events on its lane, in ms from the first launch's start."""

    start: float
    end: float


class Task(Protocol):
    """Work whose buffers are allocated and filled. `work` may have been made smaller than was asked for."""

    @property
    def work(self) -> Work: ...

    def launch(self, lane: int = 0) -> None:
        """Queue it once more; returns before it ends."""
        ...

    def captured(self, launches: int, lane: int = 0) -> Callable[[], None]:
        """So many launches as one graph; each call queues the graph once on that lane. Lives as long as the task."""
        ...

    def wrong(self) -> str | None:
        """Wait, then compare what the launches left with what they must leave: what is wrong, or None."""
        ...

    def close(self) -> None:
        """Wait, then free its memory."""
        ...


class Chain(Protocol):
    """Small kernels, each of which needs the one before it, over and over on the same values."""

    def launch(self) -> None:
        """Queue the kernels one by one."""
        ...

    def replay(self) -> None:
        """Queue the same kernels as one captured graph."""
        ...

    def wrong(self) -> str | None:
        """As Task's: every kernel that was queued must have run exactly once."""
        ...


class Slab(Protocol):
    """Neighbouring rows of a grid on which -laplace(u) = f is solved by Jacobi sweeps, with a halo row on each side."""

    def sweep(self) -> float:
        """One sweep over all rows but the halos; returns the largest change of any value."""
        ...

    def edges(self) -> tuple[Vector, Vector]:
        """The first and the last row inside the halos."""
        ...

    def set_halos(self, above: Vector | None, below: Vector | None) -> None:
        """None leaves a halo as it is: the edge of the whole grid."""
        ...

    def values(self) -> Field:
        """All rows, halos included."""
        ...

    def handle(self) -> bytes:
        """A name for this slab's edges that another process of the same PID namespace can `connect` to (CUDA IPC).
        Raises UnsupportedError without a GPU."""
        ...

    def connect(self, above: bytes | None, below: bytes | None) -> None:
        """Open the neighbours' handles; None at the edge of the whole grid."""
        ...

    def publish(self, turn: int) -> None:
        """Show this slab's edges to those connected to it, as turn `turn`. Complete when it returns. Two turns are
        kept, so that one barrier per turn is enough: publish, barrier, `fetch`."""
        ...

    def fetch(self, turn: int) -> None:
        """Fill the halos with the connected neighbours' edges of that turn."""
        ...

    def disconnect(self) -> None:
        """Close the neighbours' handles."""
        ...

    def close(self) -> None:
        """Free this slab. All that are connected to it must have disconnected before."""
        ...


class Backend(Protocol):
    @property
    def name(self) -> str:
        """cupy, numpy, or `numpy on a simulated GPU`: printed with every figure."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether a simulated GPU stands behind it."""
        ...

    @property
    def timed(self) -> bool:
        """Whether its times are a GPU's: False for NumPy."""
        ...

    def device(self) -> Device: ...

    def peaks(self) -> Peaks: ...

    def try_allocate(self, size: int) -> bool:
        """Allocate `size` bytes and free them again; False where it is refused for memory."""
        ...

    def allocate(self, size: int) -> int:
        """Hold `size` bytes until `free`; returns their handle. Raises OutOfMemoryError."""
        ...

    def free(self, handle: int) -> None: ...

    def spin(self, milliseconds: float) -> None:
        """Launch a kernel that occupies the GPU for about that long; returns before it ends."""
        ...

    def run_endless(self, ended: Callable[[float], bool], blocks: int = 1) -> None:
        """Keep the GPU in a kernel that has no end of its own until `ended(seconds)`, which waits that long at most, is
        true; the kernel has ended when this returns. `blocks` of 1024 threads: two per SM leave room for nobody."""
        ...

    def fault(self, fault: Fault) -> None:
        """Run a kernel that fails, and wait for it: raises GpuError. UnsupportedError where there is no GPU."""
        ...

    def synchronize(self) -> None:
        """Wait for everything launched. Raises GpuError when any of it failed."""
        ...

    def prepare(self, work: Work) -> Task:
        """Allocate and fill what `work` needs. Raises OutOfMemoryError."""
        ...

    def timed_launches(self, launches: Sequence[tuple[Task, int]]) -> list[Span]:
        """Launch each task on its lane, all before waiting for any, and wait for all."""
        ...

    def chain(self, kernels: int, elements: int) -> Chain:
        """`kernels` launches over `elements` floats make one pass of the chain."""
        ...

    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        """Copy each row of `chunks` in, add `iterations` to it in a kernel, and copy it out, spread over `lanes`.

        Returns the results and the ms from the first copy to the last. `pinned`: from and to page-locked memory, which
        alone lets copies overlap with kernels. Values up to 2^24 are exact.
        """
        ...

    def add(self, left: Floats, right: Floats) -> Floats: ...

    def normalise(self, values: Floats) -> Floats:
        """Mean 0 and standard deviation 1; all zeros where the values are all alike. Sums are taken in double."""
        ...

    def slab(self, values: Field, source: Field, spacing: float) -> Slab:
        """`values` and `source` include the halo rows and the first and last column, which a sweep leaves alone."""
        ...

    def sum_of_squares(self, vector: Vector) -> float: ...

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        """One launch for all rows of `matrix` (rows, columns)."""
        ...

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        """One launch per vector, spread over `streams` streams of this process."""
        ...

    def close(self) -> None:
        """Wait for what was launched, then leave the GPU: dying in mid-kernel kills the neighbours."""
        ...
