"""What our parts keep of an object: no field that nobody reads, and none whose changes concern nobody. Pure."""

from gpushare.kube.resources import Object

_OF_NAMESPACE = ("name", "uid", "resourceVersion", "deletionTimestamp", "labels")
_OF_SHARE = ("name", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers")
_OF_SHARE_STATUS = ("gpuMemoryMib",)


def kept_namespace(namespace: Object) -> Object:
    """Its name and labels, and whether it is being deleted. There may be many, each with 256 kB of annotations."""
    return {"metadata": {key: namespace["metadata"][key] for key in _OF_NAMESPACE if key in namespace["metadata"]}}


def kept_share(share: Object) -> Object:
    """A GpuShare's spec, and what an agent reads of its metadata and status.

    Without the counts of slots, which the operator writes into the status: they change with each pod that comes or
    goes, and no agent needs a turn for that.
    """
    metadata, status = share["metadata"], share.get("status") or {}
    return {
        "metadata": {key: metadata[key] for key in _OF_SHARE if key in metadata},
        "spec": share.get("spec") or {},
        "status": {key: status[key] for key in _OF_SHARE_STATUS if key in status},
    }
