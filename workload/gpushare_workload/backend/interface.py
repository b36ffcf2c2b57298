"""The calls that a scenario may make on the machine.

Vectors are float64 and Floats float32 NumPy arrays in host memory; times are in ms, memory in bytes. Work is queued on
lanes: each lane is a CUDA stream, counted from 0. Every call that touches the GPU raises GpuError. When an error has
ended the context, every later call raises it too.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.backend.work import Floats, Peaks, Work

Vector = NDArray[np.float64]
Field = NDArray[np.float64]
"""Two dimensions: rows, columns."""


class GpuError(Exception):
    """CUDA refused a call or failed. `code` is CUDA's runtime error number (cudaError_t)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"CUDA error {code}: {message}")
        self.code = code


class OutOfMemoryError(GpuError):
    """Error 2: the allocation is above this client's limit, or the GPU is full."""


class UnsupportedError(ValueError):
    """The backend cannot do this. The text says what to do instead."""


TERMINATED_BY_DAEMON = 810
"""cudaErrorMpsClientTerminated: the MPS daemon terminated this client; its neighbours go on."""


class KernelFault(StrEnum):
    """How a kernel can fail on purpose."""

    ILLEGAL_ADDRESS = "illegal-address"
    TRAP = "trap"
    ASSERT = "assert"


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The GPU as CUDA shows it to this process; memory in bytes."""

    product: str
    uuid: str
    sms: int | None
    """SMs visible to this process: under an MPS thread limit fewer than the GPU has."""
    total_sms: int | None
    """SMs of the whole GPU; None if neither NVML nor the simulation reports them."""
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Span:
    """The time of one launch, by CUDA events on its lane, in ms since the start of the first launch."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """What the kernels of one launch wrote about themselves, in ns of the GPU's own clock, which all processes share.

    From `paused` to `resumed` the GPU ran something else: a time slice ended in mid-kernel. Both are 0 if it did not.
    """

    start: int
    end: int
    paused: int
    resumed: int
    sms: int
    """A bit for each SM that ran a block of it; SM 0 is the lowest."""


class Recording(Protocol):
    """Compute work whose launches are recorded, up to a number that was set before."""

    @property
    def work(self) -> Work: ...

    def launch(self) -> None:
        """Queue one more launch. Returns before it ends. Launches beyond the set number are not recorded."""
        ...

    def records(self) -> list[LaunchRecord]:
        """Wait, then read what was recorded, in the order of the launches."""
        ...

    def wrong(self, launches: int) -> str | None:
        """The same as Task.wrong."""
        ...

    def close(self) -> None:
        """Wait, then free its memory."""
        ...


class Task(Protocol):
    """Work whose buffers are allocated and filled. `work` may be smaller than the work that was requested (NumPy)."""

    @property
    def work(self) -> Work: ...

    def launch(self, lane: int = 0) -> None:
        """Queue one more launch. Returns before it ends."""
        ...

    def captured(self, launches: int, lane: int = 0) -> Callable[[], None]:
        """Capture `launches` as one graph. Each call queues the graph once on that lane, until the task is closed."""
        ...

    def wrong(self, launches: int) -> str | None:
        """Wait, then compare the buffers with the result of `launches`: a sentence about the difference, or None.

        The caller counts its launches itself, those of captured graphs included: a launch that got lost is found.
        """
        ...

    def close(self) -> None:
        """Wait, then free its memory."""
        ...


class Chain(Protocol):
    """Small kernels that work on the same values, each on the result of the one before it."""

    def launch(self) -> None:
        """Queue the kernels one by one."""
        ...

    def replay(self) -> None:
        """Queue the same kernels as one captured graph."""
        ...

    def wrong(self, passes: int) -> str | None:
        """The same as Task.wrong: every kernel of `passes` must have run exactly once."""
        ...


class Slab(Protocol):
    """Neighbouring rows of a grid on which Jacobi sweeps solve -laplace(u) = f, with a halo row on each side."""

    def sweep(self) -> float:
        """Sweep once over all rows except the halos. Returns the largest change of any value."""
        ...

    def edges(self) -> tuple[Vector, Vector]:
        """Copies of the first and the last row inside the halos."""
        ...

    def set_halos(self, above: Vector | None, below: Vector | None) -> None:
        """Sets the halos; None leaves one unchanged: there is the edge of the whole grid."""
        ...

    def values(self) -> Field:
        """All rows, halos included."""
        ...

    def handle(self) -> bytes:
        """A CUDA IPC handle of this slab's edges, for `connect` in another process of the same PID namespace.

        Raises UnsupportedError without a GPU.
        """
        ...

    def connect(self, above: bytes | None, below: bytes | None) -> None:
        """Open the neighbours' handles; None at the edge of the whole grid."""
        ...

    def publish(self, turn: int) -> None:
        """Make this slab's edges of `turn` visible to the connected slabs before the call returns.

        The edges of two turns are kept, so that one barrier for each turn is enough: `publish`, barrier, `fetch`.
        """
        ...

    def fetch(self, turn: int) -> None:
        """Fill the halos with the connected neighbours' edges of that turn."""
        ...

    def disconnect(self) -> None:
        """Close the neighbours' handles."""
        ...

    def close(self) -> None:
        """Free this slab. All slabs connected to it must have disconnected."""
        ...


class Backend(Protocol):
    """One process's GPU context."""

    @property
    def name(self) -> str:
        """`cupy`, `numpy` or `numpy on a simulated GPU`; printed with every figure."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether it is a client of a simulated GPU."""
        ...

    @property
    def timed(self) -> bool:
        """Whether its times are those of a GPU: False for NumPy."""
        ...

    def device(self) -> DeviceProperties: ...

    def peaks(self) -> Peaks: ...

    def try_allocate(self, size: int) -> bool:
        """Allocate `size` bytes and free them. False if the allocation is refused."""
        ...

    def allocate(self, size: int) -> int:
        """Hold `size` bytes until `free`. Returns their handle. Raises OutOfMemoryError."""
        ...

    def free(self, handle: int) -> None: ...

    def spin(self, milliseconds: float) -> None:
        """Launch a kernel that occupies the GPU for about that long. Returns before it ends."""
        ...

    def run_endless(self, ended: Callable[[float], bool], blocks: int = 1) -> None:
        """Run a kernel without an end of its own until `ended(seconds)`, which waits at most that long, returns True.

        The kernel has ended when this returns. It has `blocks` of 1024 threads: two per SM leave no room for others.
        """
        ...

    def fault(self, fault: KernelFault) -> None:
        """Run a kernel that fails and wait for it. Raises GpuError; UnsupportedError without a GPU."""
        ...

    def synchronize(self) -> None:
        """Wait for all launches. Raises GpuError when one of them failed."""
        ...

    def prepare(self, work: Work) -> Task:
        """Allocate and fill the buffers of `work`. Raises OutOfMemoryError."""
        ...

    def record(self, work: Work, launches: int) -> Recording:
        """Prepares compute work as `prepare` does; the first `launches` are recorded."""
        ...

    def timed_launches(self, launches: Sequence[tuple[Task, int]]) -> list[Span]:
        """Launch each task on its lane, then wait for all of them."""
        ...

    def chain(self, kernels: int, elements: int) -> Chain:
        """`kernels` launches over `elements` floats make one pass of the chain."""
        ...

    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        """Copy each row of `chunks` in, add `iterations` to it in a kernel, and copy it out, spread over `lanes`.

        Returns the results and the ms from the first copy to the last. `pinned` copies to and from page-locked memory;
        only such copies overlap with kernels. Values up to 2^24 are exact.
        """
        ...

    def filter_chunk(self, chosen: ChunkFilter, inputs: Sequence[Floats], result: Floats, pieces: int = 1) -> None:
        """Fill `result` from `inputs` (two for ADD, else one), all of one length in host memory. Sums are in double.

        Each of `pieces` is copied in, computed and copied out on a lane of its own. Page-locked memory lets the copies
        of one piece run beside the kernels of another.
        """
        ...

    def page_locked(self, memory: Floats) -> AbstractContextManager[None]:
        """Keep this host memory, which other processes may share, page-locked in the context."""
        ...

    def managed_passes(self, size: int, passes: int) -> float:
        """Allocate `size` bytes of managed memory, let a kernel add one to every float `passes` times, and free them.

        Returns the ms of the passes after the first; there must be two or more. Managed memory may be larger than the
        GPU's: pages then move. Raises OutOfMemoryError where it may not; WrongError for a wrong
        sum; UnsupportedError without a GPU.
        """
        ...

    def slab(self, values: Field, source: Field, spacing: float) -> Slab:
        """`values` and `source` include the halo rows and the first and last column, which a sweep does not change."""
        ...

    def sum_of_squares(self, vector: Vector) -> float: ...

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        """One launch for all rows of `matrix` (rows, columns)."""
        ...

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        """One launch per vector, spread over `streams` streams of this process."""
        ...

    def close(self) -> None:
        """Wait for all launches, then leave the GPU: a client that dies in mid-kernel ends its neighbours."""
        ...


def identity(backend: Backend) -> dict[str, str | bool]:
    """The fields that accompany every figure: which backend computed it, and whether its times are those of a GPU."""
    return {"backend": backend.name, "timed": backend.timed}
