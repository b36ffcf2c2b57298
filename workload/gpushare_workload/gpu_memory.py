"""How much GPU memory this process holds, its CUDA context included."""

import os

from gpushare_workload.backend import Backend
from gpushare_workload.bench.gpu import GpuViewError, open_view
from gpushare_workload.grant import MIB, Grant


def used_mib(backend: Backend) -> int | None:
    """MiB; None where nothing tells.

    Under a memory limit CUDA shows what is left of it as free (measured), so that the rest is this process's own. Else
    NVML's list tells, which has the PIDs of the host: a process in a container does not find itself there.
    """
    limit = Grant.from_environment().process_memory
    if limit is not None:
        return max(0, limit - backend.device().free) // MIB
    try:
        view = open_view()
        processes = view and view.processes()
    except GpuViewError:
        return None
    return {**processes.others, **processes.mps_clients}.get(os.getpid()) if processes else None
