"""The one seam between a scenario and the machine: CuPy on a GPU, NumPy where there is none.

NumPy computes the same results on the CPU and, where the simulated GPU of gpushare is present, is a client of it:
limits, memory, kernels in flight and faults then behave as measured on hardware, times and throughput do not.
"""

import importlib.util
import os

from gpushare_workload.backend.seam import Backend, Device, GpuError, OutOfMemoryError

__all__ = ["Backend", "Device", "GpuError", "OutOfMemoryError", "open_backend"]

CHOICES = ("auto", "cupy", "numpy")


def open_backend(choice: str = "auto", visible_device: str | None = None) -> Backend:
    """Create this process's GPU context. `auto` takes CuPy where it is installed.

    `visible_device` sets CUDA_VISIBLE_DEVICES before CUDA starts. Raises GpuError when the context is refused.
    """
    if visible_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_device
    if choice == "auto":
        choice = "cupy" if importlib.util.find_spec("cupy") else "numpy"
    if choice == "cupy":
        from gpushare_workload.backend.on_cupy import CupyBackend

        return CupyBackend()
    if choice == "numpy":
        from gpushare_workload.backend.on_numpy import NumpyBackend

        return NumpyBackend()
    raise ValueError(f"unknown backend {choice!r}; choose one of {', '.join(CHOICES)}")
