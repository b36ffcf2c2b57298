"""Translates CuPy's errors into GpuError."""

from collections.abc import Callable
from typing import Any, TypeVar

import cupy

from gpushare_workload.backend.interface import GpuError, OutOfMemoryError

OUT_OF_MEMORY = 2
LAUNCH_FAILURE = 719
CUDA_ERRORS = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)

Result = TypeVar("Result")


def translated(call: Callable[[], Result]) -> Result:
    """What `call` returns. Errors of the CUDA runtime, the driver and the memory pool are raised as GpuError."""
    try:
        return call()
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise OutOfMemoryError(OUT_OF_MEMORY, str(error)) from error
    except CUDA_ERRORS as error:
        raise gpu_error(error) from error


def gpu_error(error: Any) -> GpuError:
    code = int(getattr(error, "status", LAUNCH_FAILURE))
    return (OutOfMemoryError if code == OUT_OF_MEMORY else GpuError)(code, str(error))
