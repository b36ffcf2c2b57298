"""The GPU memory that this process holds, its CUDA context included."""

import os

from gpushare_workload.backend import Backend
from gpushare_workload.gpus.grant import MIB, ContainerGrant
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitorError


def used_mib(backend: Backend) -> int | None:
    """MiB, or None if unknown.

    Under a memory limit CUDA shows the rest of the limit as free (measured): the difference is this process's own
    memory. Without a limit the figure is NVML's, which lists the host's PIDs: a process in a container does not find
    itself there.
    """
    limit = ContainerGrant.from_environment().process_memory
    if limit is not None:
        return max(0, limit - backend.device().free) // MIB
    try:
        monitor = open_monitor()
        processes = monitor.processes() if monitor is not None else None
    except GpuMonitorError:
        return None
    if processes is None:
        return None
    return {**processes.others, **processes.mps_clients}.get(os.getpid())
