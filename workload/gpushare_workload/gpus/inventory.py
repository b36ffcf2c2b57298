"""The GPUs that this process may use, and the processes on them.

Guarantees: nothing here touches CUDA, after whose start a process could not be pinned to a GPU any more. The source is
NVML (`nvidia-ml-py`), or the device nodes of the simulated GPUs.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpushare.simulation.paths import device_nodes, directory
from gpushare.simulation.wire import Channel, Disconnected, connect
from gpushare_workload.gpus.monitor import VISIBLE, GpuMonitor, GpuMonitorError
from gpushare_workload.gpus.nvml import NvmlMonitor
from gpushare_workload.gpus.simulated import SimulatedMonitor

CONNECT_SECONDS = 5.0


def open_monitor(environment: Mapping[str, str] = os.environ) -> GpuMonitor | None:
    """The monitor of the first GPU of CUDA_VISIBLE_DEVICES, counted as NVML counts; None on a machine without NVML.

    Raises GpuMonitorError when NVML is present and fails.
    """
    chosen = (environment.get(VISIBLE) or "0").split(",")[0].strip()
    if device_nodes(directory()):
        return SimulatedMonitor.open(chosen)
    return NvmlMonitor.open(chosen)


def visible(environment: Mapping[str, str] = os.environ) -> list[str]:
    """UUIDs of the GPUs that CUDA would show, in CUDA's order; empty without a GPU."""
    uuids = _simulated() if device_nodes(directory()) else _real()
    chosen = environment.get(VISIBLE)
    return uuids if chosen is None else select(chosen, uuids)


def select(chosen: str, uuids: Sequence[str]) -> list[str]:
    """The UUIDs that CUDA_VISIBLE_DEVICES names: indexes or beginnings of UUIDs, up to the first that names no GPU."""
    selected: list[str] = []
    for entry in map(str.strip, chosen.split(",")):
        matches = [
            uuid for index, uuid in enumerate(uuids) if entry and (entry == str(index) or uuid.startswith(entry))
        ]
        if len(matches) != 1:
            break
        selected += matches
    return selected


def processes(uuid: str) -> set[int] | None:
    """PIDs that NVML lists on that GPU, in the host's PID namespace; None if NVML cannot be asked."""
    try:
        monitor = open_monitor({VISIBLE: uuid})
        listed = monitor.processes() if monitor is not None else None
    except GpuMonitorError:
        return None
    return {*listed.mps_clients, *listed.others} if listed else None


def _real() -> list[str]:
    with suppress(ImportError, OSError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    return []


def _simulated() -> list[str]:
    uuids = []
    for node in device_nodes(directory()):
        with suppress(OSError, Disconnected):
            channel = Channel(connect(node, CONNECT_SECONDS), lambda _: None)
            uuids.append(str(channel.ask({"op": "identify"})["uuid"]))
            channel.close()
    return uuids
