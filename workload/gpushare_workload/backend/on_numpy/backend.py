"""NumPy on the CPU. If a simulated GPU is present, the process is a client of it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushare.simulation.client import CudaError, SimulatedContext
from gpushare.simulation.paths import device_nodes, directory
from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.backend.interface import (
    DeviceProperties,
    Field,
    GpuError,
    KernelFault,
    OutOfMemoryError,
    Span,
    Task,
    UnsupportedError,
    Vector,
)
from gpushare_workload.backend.on_numpy.tasks import SLOWER, NumpyChain, NumpyRecording, NumpySlab, NumpyTask, filtered
from gpushare_workload.backend.work import Floats, Peaks, Work

OUT_OF_MEMORY = 2
KERNEL_MS = 0.05
"""Duration of a kernel of no set length on an otherwise idle simulated GPU: about its duration on an H200."""
PIECE_MS = 20.0
"""A kernel on the simulated GPU cannot be ended early: an endless one is a series of kernels of this length."""

Result = TypeVar("Result")


class NumpyBackend:
    timed = False

    def __init__(self) -> None:
        self._context: SimulatedContext | None = None
        if device_nodes(directory()):
            self._context = _translate(lambda: SimulatedContext.create(os.environ))

    @property
    def name(self) -> str:
        return "numpy on a simulated GPU" if self._context else "numpy"

    @property
    def simulated(self) -> bool:
        return self._context is not None

    def device(self) -> DeviceProperties:
        context = self._context
        if context is None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return DeviceProperties("CPU", "", None, None, memory, memory)
        free, total = _translate(context.mem_get_info)
        return DeviceProperties(context.product, context.uuid, context.sms, context.total_sms, free, total)

    def peaks(self) -> Peaks:
        return Peaks()

    def try_allocate(self, size: int) -> bool:
        try:
            self.free(self.allocate(size))
        except OutOfMemoryError:
            return False
        return True

    def allocate(self, size: int) -> int:
        context = self._context
        return 0 if context is None else _translate(lambda: context.alloc(size))

    def free(self, handle: int) -> None:
        context = self._context
        if context is not None:
            _translate(lambda: context.free(handle))

    def spin(self, milliseconds: float) -> None:
        self._launch(milliseconds)

    def run_endless(self, ended: Callable[[float], bool], blocks: int = 1) -> None:
        self._launch(PIECE_MS)
        while not ended(PIECE_MS / 2000):
            self._launch(PIECE_MS)
            self.synchronize()
        self.synchronize()

    def fault(self, fault: KernelFault) -> None:
        context = self._context
        if context is None:
            raise UnsupportedError("no kernel can fail without a GPU: run this with CuPy, or on the simulated GPU")
        _translate(lambda: context.fault(fault.replace("-", "_")))
        self.synchronize()

    def synchronize(self) -> None:
        if self._context is not None:
            _translate(self._context.synchronize)

    def prepare(self, work: Work) -> NumpyTask:
        return NumpyTask(work, self._launch, self.synchronize, KERNEL_MS)

    def record(self, work: Work, launches: int) -> NumpyRecording:
        return NumpyRecording(self.prepare(work), self.synchronize, launches)

    def timed_launches(self, launches: Sequence[tuple[Task, int]]) -> list[Span]:
        began = time.perf_counter()
        return [task.timed_launch(began) for task, _ in launches if isinstance(task, NumpyTask)]

    def chain(self, kernels: int, elements: int) -> NumpyChain:
        return NumpyChain(kernels, elements, self._launch, self.synchronize, KERNEL_MS / 10)

    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        began, done = time.perf_counter(), chunks.copy()
        for chunk in done:
            self._launch(KERNEL_MS)
            for first in range(0, iterations, SLOWER):
                chunk += np.float32(min(SLOWER, iterations - first))
        self.synchronize()
        return done, (time.perf_counter() - began) * 1000

    def filter_chunk(self, chosen: ChunkFilter, inputs: Sequence[Floats], result: Floats, pieces: int = 1) -> None:
        for _ in range(pieces):
            self._launch(0.0)
        self.synchronize()
        result[...] = filtered(chosen, inputs)

    @contextmanager
    def page_locked(self, memory: Floats) -> Iterator[None]:
        yield

    def managed_passes(self, size: int, passes: int) -> float:
        raise UnsupportedError("managed memory needs a GPU and CuPy: choose another of --ways")

    def slab(self, values: Field, source: Field, spacing: float) -> NumpySlab:
        return NumpySlab(values, source, spacing, self._launch, KERNEL_MS)

    def sum_of_squares(self, vector: Vector) -> float:
        self._one_kernel()
        return float(np.dot(vector, vector))

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        self._one_kernel()
        result: Vector = np.einsum("ij,ij->i", matrix, matrix)
        return result

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        for _ in vectors:
            self._launch(0.0)
        self.synchronize()
        return np.array([float(np.dot(vector, vector)) for vector in vectors])

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def _one_kernel(self) -> None:
        self._launch(0.0)
        self.synchronize()

    def _launch(self, milliseconds: float) -> None:
        context = self._context
        if context is not None:
            _translate(lambda: context.launch(milliseconds))


def _translate(call: Callable[[], Result]) -> Result:
    """Runs `call`; the simulated driver's errors become GpuError."""
    try:
        return call()
    except CudaError as error:
        kind = OutOfMemoryError if error.code == OUT_OF_MEMORY else GpuError
        raise kind(error.code, error.name) from error
