"""The one interface between a scenario and the machine: CuPy on a GPU, NumPy on a machine without one.

NumPy computes the same results on the CPU. If gpushare's simulated GPU is present, NumPy is a client of it: limits,
memory, kernels in flight and faults then behave as measured on hardware; times and throughput do not.
"""

import importlib.util
import os

from gpushare.simulation.paths import device_nodes, directory
from gpushare_workload.backend.interface import (
    Backend,
    DeviceProperties,
    GpuError,
    OutOfMemoryError,
    UnsupportedError,
)

__all__ = ["Backend", "DeviceProperties", "GpuError", "OutOfMemoryError", "on_a_cpu", "open_backend"]

CHOICES = ("auto", "cupy", "numpy")


def open_backend(choice: str = "auto", visible_device: str | None = None) -> Backend:
    """Creates this process's GPU context. `auto` is CuPy if it is installed, else NumPy.

    `visible_device` sets CUDA_VISIBLE_DEVICES before CUDA starts. Raises GpuError when CUDA refuses the context, and
    UnsupportedError where CuPy cannot be imported.
    """
    if visible_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_device
    choice = _chosen(choice)
    if choice == "cupy":
        try:
            from gpushare_workload.backend.on_cupy.backend import CupyBackend
        except ImportError as error:
            raise UnsupportedError(
                f"--backend cupy: {error}: install gpushare[cupy-cuda13x], or cupy-cuda12x for an older driver; "
                "`--backend numpy` computes the same on the CPU"
            ) from None
        return CupyBackend()
    if choice == "numpy":
        from gpushare_workload.backend.on_numpy.backend import NumpyBackend

        return NumpyBackend()
    raise ValueError(f"unknown backend {choice!r}; choose one of {', '.join(CHOICES)}")


def on_a_cpu(choice: str) -> str:
    """What computes where no GPU does, in a sentence; empty where CuPy computes."""
    if _chosen(choice) == "cupy":
        return ""
    if device_nodes(directory()):
        return (
            "NumPy computes, as a client of a simulated GPU: limits, faults and results are real, and no time is a "
            "GPU's, so there are no ratios and no verdicts."
        )
    return (
        "No GPU: NumPy computes on this machine's CPU. Results are checked; no time is a GPU's, so there are no ratios "
        "and no verdicts."
    )


def _chosen(choice: str) -> str:
    return ("cupy" if importlib.util.find_spec("cupy") else "numpy") if choice == "auto" else choice
