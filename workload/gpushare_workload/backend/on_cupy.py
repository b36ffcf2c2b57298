"""CuPy on a real GPU, with hand-written kernels where the length or the size of a kernel is the point."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import cupy
import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend.seam import Device, GpuError, OutOfMemoryError, Vector

OUT_OF_MEMORY = 2
LAUNCH_FAILURE = 719

_SOURCE = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
extern "C" __global__ void rows(const double* matrix, double* sums, int columns) {
    __shared__ double part[256];
    double sum = 0.0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        double value = matrix[(size_t)blockIdx.x * columns + i];
        sum += value * value;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
"""
Result = TypeVar("Result")


class CupyBackend:
    name = "cupy"
    simulated = False

    def __init__(self) -> None:
        try:
            self._module: Any = cupy.RawModule(code=_SOURCE)
            self._spin = self._module.get_function("spin")
            self._rows = self._module.get_function("rows")
            cupy.cuda.runtime.deviceSynchronize()
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
            raise _gpu_error(error) from error

    def device(self) -> Device:
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        free, total = cupy.cuda.runtime.memGetInfo()
        uuid = _uuid(properties["uuid"])
        name = properties["name"].decode()
        return Device(name, uuid, properties["multiProcessorCount"], _total_sms(uuid), free, total)

    def try_allocate(self, size: int) -> bool:
        try:
            pointer = cupy.cuda.runtime.malloc(size)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status == OUT_OF_MEMORY:
                return False
            raise _gpu_error(error) from error
        cupy.cuda.runtime.free(pointer)
        return True

    def spin(self, milliseconds: float) -> None:
        self._call(lambda: self._spin((1,), (1,), (np.uint64(milliseconds * 1e6),)))

    def synchronize(self) -> None:
        self._call(cupy.cuda.runtime.deviceSynchronize)

    def sum_of_squares(self, vector: Vector) -> float:
        return float(self.sums_of_squares_batched(vector[np.newaxis, :])[0])

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        def compute() -> Vector:
            on_gpu, sums = cupy.asarray(matrix), cupy.empty(len(matrix), dtype=cupy.float64)
            self._rows((len(matrix),), (256,), (on_gpu, sums, np.int32(matrix.shape[1])))
            result: Vector = sums.get()
            return result

        return self._call(compute) if len(matrix) else np.empty(0)

    def sums_of_squares_streamed(self, vectors: Sequence[Vector], streams: int) -> Vector:
        def compute() -> Vector:
            lanes = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]
            sums = [cupy.empty(1, dtype=cupy.float64) for _ in vectors]
            inputs = []
            for index, vector in enumerate(vectors):
                with lanes[index % streams]:
                    inputs.append(cupy.asarray(vector))
                    self._rows((1,), (256,), (inputs[-1], sums[index], np.int32(len(vector))))
            for lane in lanes:
                lane.synchronize()
            return np.array([float(value.get()[0]) for value in sums])

        return self._call(compute)

    def close(self) -> None:
        """Waits for what was launched: a process that exits in mid-kernel ends its neighbours (measured on an H200).

        The context itself goes with the process: destroying it under CuPy's pools is an error of its own.
        """
        with suppress(GpuError):
            self.synchronize()

    @staticmethod
    def _call(call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
            raise _gpu_error(error) from error


def _gpu_error(error: Any) -> GpuError:
    code = int(getattr(error, "status", LAUNCH_FAILURE))
    return (OutOfMemoryError if code == OUT_OF_MEMORY else GpuError)(code, str(error))


def _uuid(raw: bytes) -> str:
    text = raw[:16].hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _total_sms(uuid: str) -> int | None:
    """SMs of the whole GPU: CUDA tells only what this client may use, NVML counts the FP32 cores of all."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) // (64 if major in (6, 7) else 128)
    except (ImportError, OSError, pynvml.NVMLError):
        return None
