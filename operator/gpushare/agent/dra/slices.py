"""This node's ResourceSlice, with a device for each GPU of a share that is delivered by claims. Pure.

Many claims share a device (KEP-5075); the scheduler counts what they take, in percent of threads, bytes of memory and
clients. A GPU that takes no client for now is tainted NoSchedule and stays in the slice: a taint of NoExecute, or a
device that vanishes, would cost running clients their pods.
"""

import re
from collections.abc import Callable, Iterable

from gpushare.agent.gpus.view import DriverVersions
from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import LEAST_MEMORY_MIB, format_mib
from gpushare.kube.client import Object
from gpushare.nvml.types import GpuInfo

PREPARED = f"{names.GROUP}/prepared"
"""Annotation that changes whenever a claim was prepared, so that the scheduler considers pending pods again.

The scheduler (Kubernetes 1.37, GatherAllocatedState) counts the capacity of a claim that it is just writing twice. A
claim that would fit is then refused, and nothing that happens afterwards would bring it back for five minutes.
"""


def resource_slice(node: str, node_uid: str, devices: Iterable[Object], prepared: int = 0) -> Object:
    """Owned by the Node, so that it is deleted with it. `prepared`: number of claims prepared, see `PREPARED`."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": names.slice_name(node),
            "ownerReferences": [owner],
            "annotations": {PREPARED: str(prepared)},
        },
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": sorted(devices, key=lambda device: str(device["name"])),
        },
    }


def device(info: GpuInfo, share: GpuShare, driver: DriverVersions | None, closed: str = "") -> Object | None:
    """A GPU and the capacities that claims may take. `closed`: why it takes none now. None: no client fits on it."""
    clients = share.clients
    memory, default = share.claimable_mib(info.memory_mib), share.memory_default_mib
    if default > memory:
        return None
    threads, burst = clients.threads, share.claimable_burst_mib(info.memory_mib)
    most_burst = min(share.memory_limit_max_mib - LEAST_MEMORY_MIB, burst)
    published: Object = {
        "name": names.device_name(info.uuid),
        "attributes": _attributes(info, share, driver),
        "capacity": {
            names.CAPACITY_THREADS: _ranged(100 * threads.overcommit, threads.default, 1, threads.max, str),
            names.CAPACITY_MEMORY: _ranged(
                memory, default, LEAST_MEMORY_MIB, min(share.memory_max_mib, memory), format_mib
            ),
            **({names.CAPACITY_MEMORY_BURST: _ranged(burst, 0, 0, most_burst, format_mib)} if most_burst > 0 else {}),
            names.CAPACITY_CLIENTS: {
                "value": str(clients.per_gpu),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
        "allowMultipleAllocations": True,
    }
    return tainted(published, closed) if closed else published


def tainted(device: Object, why: str) -> Object:
    return {**device, "taints": [{"key": names.TAINT_NOT_READY, "value": why, "effect": "NoSchedule"}]}


def same(desired: Object, present: Object) -> bool:
    """Whether they differ by nothing but the API server's own additions, such as the time of a taint."""
    devices = [_without_times(device) for device in present["spec"].get("devices") or ()]
    return bool({**present["spec"], "devices": devices} == desired["spec"]) and _prepared(present) == _prepared(desired)


def closed_devices(resource_slice: Object | None) -> frozenset[str] | None:
    """Names of the devices that the scheduler gives to no claim; None: there is no slice, and so no device."""
    if resource_slice is None:
        return None
    devices = resource_slice["spec"].get("devices") or ()
    return frozenset(device["name"] for device in devices if device.get("taints"))


def _attributes(info: GpuInfo, share: GpuShare, driver: DriverVersions | None) -> Object:
    """MPS is part of the driver and has its version."""
    attributes: Object = {
        names.ATTRIBUTE_SHARE: {"string": share.name},
        names.ATTRIBUTE_UUID: {"string": info.uuid},
        "productName": {"string": info.product[:64]},
        "multiprocessors": {"int": info.sms},
        "index": {"int": info.index},
    }
    if info.numa_node is not None:
        attributes["numaNode"] = {"int": info.numa_node}
    versions = {"cudaComputeCapability": info.compute_capability}
    if driver is not None:
        versions |= {"driverVersion": driver.version, "cudaDriverVersion": driver.cuda_version}
    return attributes | {name: {"version": text} for name, raw in versions.items() if (text := _semantic(raw))}


def _ranged(value: int, default: int, least: int, most: int, quantity: Callable[[int], str]) -> Object:
    """Requests round up to whole units of what `quantity` writes."""
    valid = {"min": quantity(least), "max": quantity(most), "step": quantity(1)}
    return {"value": quantity(value), "requestPolicy": {"default": quantity(default), "validRange": valid}}


def _semantic(version: str) -> str:
    """The version as the API wants it (semver.org): 580.159.4 of 580.159.04; empty where there are no numbers."""
    numbers = [str(int(part)) for part in re.findall(r"[0-9]+", version)[:3]]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else ""


def _prepared(resource_slice: Object) -> str | None:
    count: str | None = (resource_slice["metadata"].get("annotations") or {}).get(PREPARED)
    return count


def _without_times(device: Object) -> Object:
    taints = [
        {key: value for key, value in taint.items() if key != "timeAdded"} for taint in device.get("taints") or ()
    ]
    return {**device, "taints": taints} if taints else device
