"""The GPU as NVML sees it from outside of the clients: who is on it with how much memory, at which clocks.

Two sides behind one description: NVIDIA's binding (`nvidia-ml-py`), and the simulated driver. What a driver or a GPU
cannot tell reads as absent; without any of the two there is no view, and figures that need one are left out.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpushare.simulation.paths import device_nodes, directory

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuViewError(Exception):
    """NVML refused or failed; the text is NVML's own."""


@dataclass(frozen=True, slots=True)
class Processes:
    """MiB by PID. `others` holds everything that is no MPS client: the MPS server too."""

    mps_clients: Mapping[int, int] = field(default_factory=dict)
    others: Mapping[int, int] = field(default_factory=dict)


class GpuView(Protocol):
    """Errors: GpuViewError."""

    simulated: bool

    @property
    def uuid(self) -> str: ...

    def processes(self) -> Processes: ...

    def compute_mode(self) -> str:
        """Default, ExclusiveProcess or Prohibited, as gpushare spells them."""
        ...

    def set_compute_mode(self, mode: str) -> None:
        """Needs root. Reaches contexts that are created from now on."""
        ...

    def clocks(self) -> dict[str, Any]:
        """As of now: sm_mhz, memory_mhz, power_watts, celsius, and `reasons` for a clock below the highest."""
        ...

    def facts(self) -> dict[str, Any]:
        """What does not change while a benchmark runs."""
        ...


def open_view(environment: Mapping[str, str] = os.environ) -> GpuView | None:
    """Of the first GPU of CUDA_VISIBLE_DEVICES, counted as NVML counts; None where nothing can be seen.

    Raises GpuViewError where NVML is there and fails.
    """
    chosen = (environment.get(VISIBLE) or "0").split(",")[0].strip()
    if device_nodes(directory()):
        from gpushare_workload.bench.simulated_gpu import SimulatedView

        return SimulatedView.open(chosen)
    from gpushare_workload.bench.nvml_gpu import NvmlView

    return NvmlView.open(chosen)


def select(chosen: str, uuids: list[str]) -> int:
    """The index of the GPU named by index or UUID. Raises GpuViewError naming what there is."""
    if chosen.isdecimal() and int(chosen) < len(uuids):
        return int(chosen)
    found = [index for index, uuid in enumerate(uuids) if chosen and uuid.startswith(chosen)]
    if len(found) != 1:
        raise GpuViewError(f"{VISIBLE}={chosen!r} names no GPU of this machine: {', '.join(uuids) or 'none is there'}")
    return found[0]
