"""Host memory that several processes see as one NumPy array.

Guarantees: nothing stays in /dev/shm, however the processes end, and no other process can open the memory. It comes
from memfd_create(2), has no name, and a worker inherits its descriptor. The container's memory limit bounds it, not the
64 MiB that /dev/shm usually has in a container.
"""

import mmap
import os
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class SharedArray:
    """`array` is the NumPy view. Pass a SharedArray to a worker as an argument of its target, not in a message."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64, descriptor: int | None = None) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        size = max(1, int(np.prod(shape)) * self._dtype.itemsize)
        if descriptor is None:
            descriptor = os.memfd_create("gpushare-workload", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, size)
        self.array: NDArray[Any] = np.ndarray(shape, self._dtype, buffer=self._memory)

    @classmethod
    def of(cls, array: NDArray[Any]) -> "SharedArray":
        """A shared copy of `array`."""
        shared = cls(array.shape, array.dtype)
        shared.array[...] = array
        return shared

    def __reduce__(self) -> tuple[Callable[..., "SharedArray"], tuple[Any, ...]]:
        if context.get_spawning_popen() is None:
            raise TypeError("a SharedArray reaches a process only as an argument of its target")
        return _attach, (self._shape, self._dtype.str, reduction.DupFd(self._descriptor))

    def __del__(self) -> None:
        # The mapping ends with its last view. Nothing else owns the descriptor.
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def _attach(shape: tuple[int, ...], dtype: str, descriptor: Any) -> SharedArray:
    return SharedArray(shape, dtype, descriptor.detach())
