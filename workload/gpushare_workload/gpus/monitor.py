"""One GPU as NVML shows it from outside of the clients: its processes with their memory, its clocks, its compute mode.

`GpuMonitor` describes two implementations: NVIDIA's binding (gpus/nvml.py) and the simulated driver
(gpus/simulated.py). Figures that a driver or a GPU does not report are absent. `inventory.open_monitor` chooses the
implementation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

VISIBLE = "CUDA_VISIBLE_DEVICES"
SETTLED_SECONDS = 0.4
"""What NVML reports earlier may be of the time before. On an H100 a busy or an idle GPU showed 0.18 to 0.33 s later
(measurements/results/h100/utilisation-delay.json, measurements/gpu/workload/utilisation_delay.py)."""


class GpuMonitorError(Exception):
    """NVML refused a call or failed; the text is NVML's."""


@dataclass(frozen=True, slots=True)
class ListedProcesses:
    """MiB by PID. `others` are all processes that are no MPS clients, the MPS server included."""

    mps_clients: Mapping[int, int] = field(default_factory=dict)
    others: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """The use of the whole GPU, now.

    `busy_percent`: the part of the last sample period in which a kernel ran; None if not reported.
    """

    memory_mib: int
    busy_percent: float | None = None


class GpuMonitor(Protocol):
    """Every call raises GpuMonitorError when NVML fails."""

    simulated: bool

    @property
    def uuid(self) -> str: ...

    def processes(self) -> ListedProcesses: ...

    def usage(self) -> GpuUsage: ...

    def compute_mode(self) -> str:
        """Default, ExclusiveProcess or Prohibited, as gpushare spells them."""
        ...

    def set_compute_mode(self, mode: str) -> None:
        """Needs root. Applies to contexts that are created from now on."""
        ...

    def clocks(self) -> dict[str, Any]:
        """Now: sm_mhz, memory_mhz, power_watts, celsius, and `reasons` for a clock below the highest."""
        ...

    def facts(self) -> dict[str, Any]:
        """What does not change during a benchmark: product, driver, memory, limits."""
        ...


def index_of(chosen: str, uuids: list[str]) -> int:
    """The index of the GPU that `chosen`, an index or the beginning of a UUID, names.

    Raises GpuMonitorError with the UUIDs of this machine when it names none or several.
    """
    if chosen.isdecimal() and int(chosen) < len(uuids):
        return int(chosen)
    matches = [index for index, uuid in enumerate(uuids) if chosen and uuid.startswith(chosen)]
    if len(matches) != 1:
        raise GpuMonitorError(f"{VISIBLE}={chosen!r} names no GPU of this machine: {', '.join(uuids) or 'it has none'}")
    return matches[0]
