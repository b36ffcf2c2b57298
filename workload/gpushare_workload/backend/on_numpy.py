"""NumPy, as a client of the simulated GPU where there is one."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushare.simulation.client import CudaError, SimulatedContext
from gpushare.simulation.paths import device_nodes, directory
from gpushare_workload.backend.seam import Device, GpuError, OutOfMemoryError, Vector

OUT_OF_MEMORY = 2

Result = TypeVar("Result")


class NumpyBackend:
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

    def device(self) -> Device:
        context = self._context
        if context is None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return Device("CPU", "", None, None, memory, memory)
        free, total = _translate(context.mem_get_info)
        return Device(context.product, context.uuid, context.sms, context.total_sms, free, total)

    def try_allocate(self, size: int) -> bool:
        context = self._context
        if context is None:
            return True
        try:
            handle = _translate(lambda: context.alloc(size))
        except OutOfMemoryError:
            return False
        _translate(lambda: context.free(handle))
        return True

    def spin(self, milliseconds: float) -> None:
        self._launch(milliseconds)

    def synchronize(self) -> None:
        if self._context is not None:
            _translate(self._context.synchronize)

    def sum_of_squares(self, vector: Vector) -> float:
        self._launch(0.0)
        self.synchronize()
        return float(np.dot(vector, vector))

    def sums_of_squares_batched(self, matrix: NDArray[np.float64]) -> Vector:
        self._launch(0.0)
        self.synchronize()
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

    def _launch(self, milliseconds: float) -> None:
        context = self._context
        if context is not None:
            _translate(lambda: context.launch(milliseconds))


def _translate(call: Callable[[], Result]) -> Result:
    """The simulated driver's errors as the scenarios know them."""
    try:
        return call()
    except CudaError as error:
        kind = OutOfMemoryError if error.code == OUT_OF_MEMORY else GpuError
        raise kind(error.code, error.name) from error
