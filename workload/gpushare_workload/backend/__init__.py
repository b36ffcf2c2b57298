"""The one interface between a scenario and the machine: CuPy on a GPU, NumPy on a machine without one.

NumPy computes the same results on the CPU. If gpushare's simulated GPU is present, NumPy is a client of it: limits,
memory, kernels in flight and faults then behave as measured on hardware; times and throughput do not.
"""

import importlib.util
import os

from gpushare_workload.backend.interface import Backend, DeviceProperties, GpuError, OutOfMemoryError

__all__ = ["Backend", "DeviceProperties", "GpuError", "OutOfMemoryError", "open_backend"]

CHOICES = ("auto", "cupy", "numpy")


def open_backend(choice: str = "auto", visible_device: str | None = None) -> Backend:
    """Creates this process's GPU context. `auto` is CuPy if it is installed, else NumPy.

    `visible_device` sets CUDA_VISIBLE_DEVICES before CUDA starts. Raises GpuError when CUDA refuses the context.
    """
    if visible_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_device
    if choice == "auto":
        choice = "cupy" if importlib.util.find_spec("cupy") else "numpy"
    if choice == "cupy":
        from gpushare_workload.backend.on_cupy.backend import CupyBackend

        return CupyBackend()
    if choice == "numpy":
        from gpushare_workload.backend.on_numpy.backend import NumpyBackend

        return NumpyBackend()
    raise ValueError(f"unknown backend {choice!r}; choose one of {', '.join(CHOICES)}")
