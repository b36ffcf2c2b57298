"""Which GPUs this process may use, and who is on them, without touching CUDA: it could not be pinned after that.

Through NVML (`nvidia-ml-py`), or from the simulated GPUs' device nodes.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpushare.simulation.paths import device_nodes, directory
from gpushare.simulation.wire import Channel, Disconnected, connect
from gpushare_workload.bench.gpu import VISIBLE, GpuViewError, open_view

SECONDS = 5.0


def visible(environment: Mapping[str, str] = os.environ) -> list[str]:
    """UUIDs of the GPUs that CUDA would show, in its order; none without a GPU."""
    uuids = _simulated() if device_nodes(directory()) else _real()
    chosen = environment.get(VISIBLE)
    return uuids if chosen is None else select(chosen, uuids)


def select(chosen: str, uuids: Sequence[str]) -> list[str]:
    """As CUDA reads CUDA_VISIBLE_DEVICES: indexes or beginnings of UUIDs, up to the first that names no GPU."""
    found: list[str] = []
    for entry in (it.strip() for it in chosen.split(",")):
        matches = [
            uuid for index, uuid in enumerate(uuids) if entry and (entry == str(index) or uuid.startswith(entry))
        ]
        if len(matches) != 1:
            break
        found += matches
    return found


def processes(uuid: str) -> set[int] | None:
    """PIDs that NVML lists on that GPU; None where it cannot be asked. They are those of the host's PID namespace."""
    try:
        view = open_view({VISIBLE: uuid})
        found = view and view.processes()
    except GpuViewError:
        return None
    return {*found.mps_clients, *found.others} if found else None


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
            channel = Channel(connect(node, SECONDS), lambda _: None)
            uuids.append(str(channel.ask({"op": "identify"})["uuid"]))
            channel.close()
    return uuids
