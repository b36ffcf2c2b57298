"""CuPy on a real GPU, with hand-written kernels where the length or the size of a kernel matters."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import cupy
import cupyx
import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.backend.interface import (
    DeviceProperties,
    Field,
    GpuError,
    KernelFault,
    OutOfMemoryError,
    Span,
    Task,
    Vector,
)
from gpushare_workload.backend.on_cupy import device, filtering, tasks
from gpushare_workload.backend.on_cupy.errors import gpu_error, translated
from gpushare_workload.backend.on_cupy.kernels import Kernels
from gpushare_workload.backend.on_cupy.recording import CupyRecording
from gpushare_workload.backend.on_cupy.slab import CupySlab
from gpushare_workload.backend.on_cupy.tasks import CupyChain, CupyTask
from gpushare_workload.backend.work import BLOCK, Floats, Peaks, Work

NOT_READY = 600
ENDLESS_BLOCK = 1024
"""Threads of a block: two such blocks leave no room on an SM for others."""
FAULTS = {
    KernelFault.ILLEGAL_ADDRESS: "illegal_address",
    KernelFault.TRAP: "trap_kernel",
    KernelFault.ASSERT: "assert_kernel",
}


class CupyBackend:
    name = "cupy"
    simulated = False
    timed = True

    def __init__(self) -> None:
        self._kernels = translated(Kernels)
        translated(cupy.cuda.runtime.deviceSynchronize)

    def device(self) -> DeviceProperties:
        return translated(device.describe)

    def peaks(self) -> Peaks:
        return translated(device.peaks)

    def try_allocate(self, size: int) -> bool:
        try:
            self.free(self.allocate(size))
        except OutOfMemoryError:
            return False
        return True

    def allocate(self, size: int) -> int:
        """Allocates by cudaMalloc itself: a memory pool would round up and keep the memory."""
        return int(translated(lambda: cupy.cuda.runtime.malloc(size)))

    def free(self, handle: int) -> None:
        translated(lambda: cupy.cuda.runtime.free(handle))

    def spin(self, milliseconds: float) -> None:
        arguments = (np.uint64(milliseconds * 1e6),)
        translated(lambda: self._kernels["spin"]((1,), (1,), arguments, stream=self._kernels.lane(0)))

    def run_endless(self, ended: Callable[[float], bool], blocks: int = 1) -> None:
        released = translated(lambda: cupyx.zeros_pinned(1, np.int32))
        lane, arguments = self._kernels.lane(0), (np.uint64(released.ctypes.data),)
        translated(lambda: self._kernels["endless"]((blocks,), (ENDLESS_BLOCK,), arguments, stream=lane))
        try:
            while not ended(0.1):
                # Nothing waits for the kernel before its release, so poll for an error.
                status = cupy.cuda.runtime.streamQuery(lane.ptr)
                if status not in (0, NOT_READY):
                    raise gpu_error(cupy.cuda.runtime.CUDARuntimeError(status))
        finally:
            released[0] = 1
            self.synchronize()

    def fault(self, fault: KernelFault) -> None:
        function = translated(lambda: self._kernels.faults.get_function(FAULTS[fault]))
        translated(lambda: function((1,), (1,), ()))
        self.synchronize()

    def synchronize(self) -> None:
        translated(cupy.cuda.runtime.deviceSynchronize)

    def prepare(self, work: Work) -> CupyTask:
        return CupyTask(self._kernels, work)

    def record(self, work: Work, launches: int) -> CupyRecording:
        return CupyRecording(self._kernels, work, launches)

    def timed_launches(self, launches: Sequence[tuple[Task, int]]) -> list[Span]:
        ours = [(task, lane) for task, lane in launches if isinstance(task, CupyTask)]
        return translated(lambda: tasks.timed_launches(self._kernels, ours)) if ours else []

    def chain(self, kernels: int, elements: int) -> CupyChain:
        return CupyChain(self._kernels, kernels, elements)

    def process_chunks(self, chunks: Floats, iterations: int, lanes: int, pinned: bool) -> tuple[Floats, float]:
        if not chunks.size:
            return chunks.copy(), 0.0
        return translated(lambda: tasks.process_chunks(self._kernels, chunks, iterations, lanes, pinned))

    def filter_chunk(self, chosen: ChunkFilter, inputs: Sequence[Floats], result: Floats, pieces: int = 1) -> None:
        if not len(result):
            return
        if pieces == 1:
            result[...] = translated(lambda: filtering.whole(self._kernels, chosen, inputs))
        else:
            translated(lambda: filtering.in_pieces(self._kernels, chosen, inputs, result, pieces))

    @contextmanager
    def page_locked(self, memory: Floats) -> Iterator[None]:
        address, runtime = memory.ctypes.data, cupy.cuda.runtime
        translated(lambda: runtime.hostRegister(address, memory.nbytes, 0))
        try:
            yield
        finally:
            self.synchronize()
            translated(lambda: runtime.hostUnregister(address))

    def managed_passes(self, size: int, passes: int) -> float:
        return translated(lambda: filtering.managed_passes(self._kernels, size, passes))

    def slab(self, values: Field, source: Field, spacing: float) -> CupySlab:
        return CupySlab(self._kernels, values, source, spacing)

    def sum_of_squares(self, vector: Vector) -> float:
        return float(self.sums_of_squares_batched(vector[np.newaxis, :])[0])

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        def compute() -> Vector:
            on_gpu, sums = cupy.asarray(matrix), cupy.empty(len(matrix), dtype=cupy.float64)
            self._kernels["rows"]((len(matrix),), (BLOCK,), (on_gpu, sums, np.int32(matrix.shape[1])))
            result: Vector = sums.get()
            return result

        return translated(compute) if len(matrix) else np.empty(0)

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        def compute() -> Vector:
            sums = [cupy.empty(1, dtype=cupy.float64) for _ in vectors]
            inputs = []
            for index, vector in enumerate(vectors):
                with self._kernels.lane(index % streams):
                    inputs.append(cupy.asarray(vector))
                    self._kernels["rows"]((1,), (BLOCK,), (inputs[-1], sums[index], np.int32(len(vector))))
            cupy.cuda.runtime.deviceSynchronize()
            return np.array([float(value.get()[0]) for value in sums])

        return translated(compute)

    def close(self) -> None:
        """Waits for all launches: a process that exits in mid-kernel ends its neighbours (measured on an H200).

        The context ends with the process: destroying it while CuPy's pools use it is an error.
        """
        try:
            self.synchronize()
        except GpuError:
            self._kernels.abandon()
