"""The machine that a figure was measured on: without it, figures cannot be compared."""

import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

from gpushare_workload.backend.interface import DeviceProperties
from gpushare_workload.backend.work import Peaks
from gpushare_workload.gpus.grant import ContainerGrant
from gpushare_workload.gpus.monitor import GpuMonitor
from gpushare_workload.mps.modes import MpsSetup

PACKAGES = (
    *("gpushare", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-ml-py"),
    # Of a program that `compare` runs, as far as it has the same interpreter.
    *("torch", "torchvision", "transformers", "jax", "jaxlib"),
)


def describe(
    monitor: GpuMonitor | None, setup: MpsSetup, device: DeviceProperties | None = None, peaks: Peaks | None = None
) -> dict[str, Any]:
    """JSON values. `gpu` is NVML's description, completed by what CUDA shows the first client, if there was one."""
    shown = {} if device is None else {"product": device.product, "uuid": device.uuid, "sms": device.total_sms}
    return {
        "gpu": {
            **{name: value for name, value in shown.items() if value},
            **(monitor.facts() if monitor else {}),
            **({} if peaks is None else {"peaks": asdict(peaks)}),
        },
        "mps": setup.describe(),
        "grant": ContainerGrant.from_environment().as_json(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def packages() -> dict[str, str]:
    """The versions of the installed packages among PACKAGES."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
