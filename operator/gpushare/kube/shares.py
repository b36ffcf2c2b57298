"""GpuShares as agents keep them: without what changes while a share serves as before. Pure.

The operator counts a share's slots in its status, and no agent is to do a turn for each pod that comes or goes.
"""

from gpushare.kube.client import Object

_READ = ("name", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers")
_STATUS = ("gpuMemoryMib",)


def kept_share(share: Object) -> Object:
    """Its spec, and of metadata and status what an agent reads; of a share that serves as before it is the same."""
    metadata, status = share["metadata"], share.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in _READ if key in metadata},
        "spec": share.get("spec") or {},
        "status": {key: status[key] for key in _STATUS if key in status},
    }
