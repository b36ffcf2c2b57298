"""Fleets for measurements, made as the API server lists them and read by the operator's own cache."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpushare.api import names
from gpushare.api.names import device_name
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.kube.client import Object
from gpushare.planner import MpsPod, Snapshot, Template
from gpushare.planner.pending import Capacity, Claim, ClaimDevice, Demand, Held

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LONG_AGO = "2026-01-01T00:00:00Z"
GPUS = 8
CLAIMS_PER_NODE = 10
GIB = 2**30


def uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-0000-0000-0000-{index:012x}"


def share(name: str, pool: str = "gpu", age: int = 0, **spec: object) -> Object:
    created = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": created,
            "finalizers": [names.FINALIZER],
        },
        "spec": {
            "nodeSelector": {"matchLabels": {"pool": pool}},
            "clients": {"perGpu": 8, "memory": {"default": "16Gi"}},
            **spec,
        },
    }


def node(number: int, pool: str, *, ready: bool = True) -> Object:
    labels = {f"example.com/label-{index}": f"value-{index}-{number % 7}" for index in range(24)}
    status = "True" if ready else "False"
    return {
        "metadata": {"name": f"node-{number:05}", "resourceVersion": "1", "labels": labels | {"pool": pool}},
        "status": {"conditions": [{"type": "Ready", "status": status}], "allocatable": {"cpu": "192"}},
    }


def gpu_node(number: int, owner: str = "", *, held: bool = False) -> Object:
    """A GpuNode, with daemons of `owner` that are ready where that is given. `held`: by one container on each GPU."""
    limits = {"threads": 100, "memoryMib": 16384}
    daemon = {"share": owner, "ready": True, "reason": "Ready", "desiredLimits": limits, "currentLimits": limits}
    gpu = {"product": "NVIDIA H200", "memoryMib": 143155, "sms": 132, "computeMode": "Default"}
    gpu |= {"computeCapability": "9.0"}
    uuids = [uuid(number, index) for index in range(GPUS)]
    holder = {"share": owner, "slots": [0], "pods": [f"team/pod-{number}"]}
    return {
        "metadata": {"name": f"node-{number:05}", "generation": 1, "resourceVersion": "1"},
        "spec": {"assignments": [{"uuid": gpu_uuid, "share": owner} for gpu_uuid in uuids]} if owner else {},
        "status": {
            "observedGeneration": 1,
            "gpus": [{"uuid": gpu_uuid, "index": index, "minor": index, **gpu} for index, gpu_uuid in enumerate(uuids)],
            "daemons": [{"uuid": gpu_uuid, **daemon, "serverPid": 1000 + index} for index, gpu_uuid in enumerate(uuids)]
            if owner
            else [],
            "holders": [{"uuid": gpu_uuid, **holder} for gpu_uuid in uuids] if held else [],
        },
    }


def cache_of(shares: Iterable[Object], nodes: Iterable[Object], gpu_nodes: Iterable[Object]) -> FleetCache:
    cache = FleetCache(lambda: None)
    cache.shares.replace(list(shares), "1")
    cache.nodes.replace(list(nodes), "1")
    cache.gpu_nodes.replace(list(gpu_nodes), "1")
    return cache


def settled(count: int, shares: int) -> FleetCache:
    """Each share has nodes of its own, whose GPUs it serves."""
    owners = [f"share-{number % shares:05}" for number in range(count)]
    return cache_of(
        [share(f"share-{index:05}", f"share-{index:05}", index) for index in range(shares)],
        [node(number, owners[number]) for number in range(count)],
        [gpu_node(number, owners[number]) for number in range(count)],
    )


def served(count: int, shares: int, slots: int = 0) -> Snapshot:
    """Every GPU is served by a current MPS pod; containers of as many pods hold `slots` of each."""
    cache = settled(count, shares)
    owners = [f"share-{number % shares:05}" for number in range(count)]
    if slots:
        cache.gpu_nodes.replace([full(gpu_node(n, owners[n]), owners[n], slots) for n in range(count)], "2")
    pods = tuple(
        MpsPod(f"mps-{n}", f"uid-{n}", owners[n], f"node-{n:05}", "new", NOW - timedelta(hours=1)) for n in range(count)
    )
    templates = {name: Template("new") for name in set(owners)}
    return replace(cache.snapshot(NOW), pods=pods, templates=templates)


def full(obj: Object, owner: str, slots: int) -> Object:
    name, gpus = obj["metadata"]["name"], [item["uuid"] for item in obj["status"]["gpus"]]
    holders = [
        {
            "uuid": gpu_uuid,
            "share": owner,
            "slots": list(range(slots)),
            "pods": [f"team/{name}-{index}-{slot}" for slot in range(slots)],
        }
        for index, gpu_uuid in enumerate(gpus)
    ]
    return {
        **obj,
        "metadata": {**obj["metadata"], "resourceVersion": "2"},
        "status": obj["status"] | {"holders": holders},
    }


def device(number: int, name: str = "share-00000") -> ClaimDevice:
    capacity = {
        names.CAPACITY_THREADS: Capacity(100, default=10, least=1),
        names.CAPACITY_MEMORY: Capacity(139 * GIB, default=GIB, least=GIB // 2, step=2**20),
        names.CAPACITY_CLIENTS: Capacity(8, default=1),
    }
    return ClaimDevice(f"node-{number // GPUS:05}", f"gpu-{number % GPUS}", name, capacity)


def waiting_claim(number: int, threads: int, memory: int, held: tuple[Held, ...] = ()) -> Claim:
    asked = {names.CAPACITY_THREADS: threads, names.CAPACITY_MEMORY: memory}
    return Claim(f"team/claim-{number:06}", f"uid-{number}", "share-00000", NOW - timedelta(hours=1), asked, held)


def demand_of(count: int, taken: int, ask: Callable[[int], tuple[int, int]]) -> Demand:
    """A GPU of each node has `taken` percent left; as many claims wait."""
    devices = tuple(device(number) for number in range(count * GPUS))
    used = {names.CAPACITY_THREADS: taken, names.CAPACITY_MEMORY: 100 * GIB, names.CAPACITY_CLIENTS: 1}
    held = [waiting_claim(n, taken, 100 * GIB, (Held(device.key, used),)) for n, device in enumerate(devices)]
    waiting = [waiting_claim(len(held) + n, *ask(n)) for n in range(count)]
    return Demand(devices, tuple(held + waiting))


def resource_slice(number: int) -> Object:
    capacity = {
        "threads": {"value": "100", "requestPolicy": {"default": "10", "validRange": {"min": "1", "step": "1"}}},
        "memory": {"value": "139Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "512Mi"}}},
        "clients": {"value": "8", "requestPolicy": {"default": "1"}},
    }
    name = f"node-{number:05}"
    shared = {"attributes": {"share": {"string": "share-00000"}}, "capacity": capacity}
    devices = [{"name": device_name(uuid(number, index)), **shared} for index in range(GPUS)]
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": name, "pool": {"name": name}, "driver": names.DRA_DRIVER, "devices": devices},
    }


def resource_claim(number: int) -> Object:
    """Allocated, on the node whose turn it is."""
    node_number = number // CLAIMS_PER_NODE
    amounts = {"threads": "10", "memory": "8Gi", "clients": "1"}
    result = {
        "driver": names.DRA_DRIVER,
        "pool": f"node-{node_number:05}",
        "device": device_name(uuid(node_number, number % GPUS)),
        "consumedCapacity": amounts,
    }
    request = {"deviceClassName": names.device_class("share-00000"), "capacity": {"requests": amounts}}
    return {
        "metadata": {
            "name": f"claim-{number:06}",
            "namespace": "team",
            "uid": f"u{number}",
            "creationTimestamp": LONG_AGO,
        },
        "spec": {"devices": {"requests": [{"exactly": request}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
