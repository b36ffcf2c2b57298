"""What a figure was measured on: without it, no figure can be compared with another."""

import os
import platform
import time
from importlib import metadata
from typing import Any

from gpushare_workload.bench.client import Hello
from gpushare_workload.bench.gpu import GpuView
from gpushare_workload.bench.grounds import Ground
from gpushare_workload.grant import Grant

PACKAGES = ("gpushare", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-ml-py")


def block(view: GpuView | None, ground: Ground, hello: Hello | None) -> dict[str, Any]:
    """`gpu` from NVML, and as far as that cannot be asked, as the first client saw it."""
    seen = (
        {}
        if hello is None
        else {"product": hello.device.product, "uuid": hello.device.uuid, "sms": hello.device.total_sms}
    )
    peaks = {} if hello is None else {"peaks": {name: getattr(hello.peaks, name) for name in hello.peaks.__slots__}}
    return {
        "gpu": {**{name: value for name, value in seen.items() if value}, **(view.facts() if view else {}), **peaks},
        "mps": ground.describe(),
        "grant": Grant.from_environment().as_json(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def packages() -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
