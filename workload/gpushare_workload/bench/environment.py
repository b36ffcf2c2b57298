"""The machine that a figure was measured on: without it, figures cannot be compared."""

import os
import platform
import time
from importlib import metadata
from typing import Any

from gpushare_workload.bench.clients.client import ClientInfo
from gpushare_workload.bench.mps_setup import MpsSetup
from gpushare_workload.gpus.grant import ContainerGrant
from gpushare_workload.gpus.monitor import GpuMonitor

PACKAGES = (
    *("gpushare", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-ml-py"),
    # Of a program that `compare` runs, as far as it has the same interpreter.
    *("torch", "torchvision", "transformers", "jax", "jaxlib"),
)


def describe(monitor: GpuMonitor | None, setup: MpsSetup, client: ClientInfo | None) -> dict[str, Any]:
    """JSON values. `gpu` is NVML's description, completed by what CUDA shows the first client."""
    shown = (
        {}
        if client is None
        else {"product": client.device.product, "uuid": client.device.uuid, "sms": client.device.total_sms}
    )
    peaks = {} if client is None else {"peaks": {name: getattr(client.peaks, name) for name in client.peaks.__slots__}}
    facts = monitor.facts() if monitor else {}
    return {
        "gpu": {**{name: value for name, value in shown.items() if value}, **facts, **peaks},
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
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
