"""Host memory that several processes see as one NumPy array.

It has no name: memory from memfd_create(2), whose descriptor a worker inherits. So nothing is left behind in /dev/shm
however the processes end, nobody else can open it, and the 64 MiB that a container's /dev/shm usually has do not bound
it (the container's memory limit does).
"""

import mmap
import os
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class SharedArray:
    """`array` is the view. Pass the object itself to a worker as an argument of its target, not in a message."""

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
        shared = cls(array.shape, array.dtype)
        shared.array[...] = array
        return shared

    def __reduce__(self) -> tuple[Callable[..., "SharedArray"], tuple[Any, ...]]:
        if context.get_spawning_popen() is None:
            raise TypeError("a SharedArray reaches a process only as an argument of its target")
        return _attach, (self._shape, self._dtype.str, reduction.DupFd(self._descriptor))

    def __del__(self) -> None:
        # The mapping goes with the last view of it; the descriptor has no other owner.
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def _attach(shape: tuple[int, ...], dtype: str, descriptor: Any) -> SharedArray:
    return SharedArray(shape, dtype, descriptor.detach())
