"""The compiled kernels and the lanes (CUDA streams) of this process."""

import ctypes
from functools import cached_property
from importlib.resources import files
from typing import Any

import cupy

NAMES = (
    "spin",
    "endless",
    "rows",
    "compute",
    "recorded",
    "memory",
    "increment",
    "process",
    "add",
    "scale",
    "convolve",
    "jacobi",
)


class Kernels:
    """Compiling creates the context. Raises CuPy's errors when CUDA refuses it."""

    def __init__(self) -> None:
        module = cupy.RawModule(code=(files(__package__) / "kernels.cu").read_text())
        self._modules: list[Any] = [module.module]
        self._functions: dict[str, Any] = {name: module.get_function(name).kernel for name in NAMES}
        self._lanes: list[Any] = []

    def __getitem__(self, name: str) -> Any:
        """Call it as (grid, block, arguments, stream=lane); arguments are arrays and NumPy scalars of exact types."""
        return self._functions[name]

    @cached_property
    def faults(self) -> Any:
        """Kernels that fail, in the same PTX whose failures were measured."""
        module = cupy.cuda.function.Module()
        module.load((files(__package__) / "faults.ptx").read_bytes())
        self._modules.append(module)
        return module

    def abandon(self) -> None:
        """Call after an error that ended the context: otherwise CuPy prints an error for each module and stream."""
        for lost in (*self._modules, *self._lanes):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(lost))

    def lane(self, number: int) -> Any:
        """A stream that does not wait for the default stream."""
        while len(self._lanes) <= number:
            self._lanes.append(cupy.cuda.Stream(non_blocking=True))
        return self._lanes[number]
