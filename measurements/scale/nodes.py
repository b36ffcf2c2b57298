"""A fleet in an API server: Nodes without a kubelet, their GpuNodes, the agents' Leases, and an operator's settings."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

import yaml

from gpushare.api import names
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NAMESPACES, NODES, Kube, Object, Resource
from gpushare.kube.coordination.heartbeat import RENEW_SECONDS, heartbeat_lease, heartbeat_spec
from gpushare.kube.resources import LEASES
from localcluster.paths import REPOSITORY

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
NAMESPACE = "gpushare-system"
GPUS = 8
AT_ONCE = 12
CHANGES_PER_SECOND = 10
OPERATOR_ENVIRONMENT = {
    "GPUSHARE_NAMESPACE": NAMESPACE,
    "GPUSHARE_POD_NAME": "operator-0",
    "GPUSHARE_IMAGE": "gpushare:scale",
    "GPUSHARE_CERTIFICATES": "CertManager",
}


def operator_command() -> list[str]:
    return ["-m", "gpushare.cli.main", "operator", "--probe-port", "18080", "--simulation"]


def node(number: int) -> Object:
    labels = {f"example.com/label-{index}": f"value-{index}-{number % 7}" for index in range(24)}
    labels |= {"kubernetes.io/hostname": name_of(number), "kubernetes.io/os": "linux", "pool": "gpu"}
    labels |= {"topology.kubernetes.io/zone": f"zone-{number % 3}", "nvidia.com/gpu.product": "NVIDIA-H200"}
    annotations = {f"example.com/annotation-{index}": "x" * 60 for index in range(8)}
    metadata = {"name": name_of(number), "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"podCIDR": f"10.{number % 250}.0.0/24"}}


def node_status(number: int) -> Object:
    room = {"cpu": "192", "memory": "2113461524Ki", "pods": "110", "ephemeral-storage": "1770454836Ki"}
    room |= {"hugepages-1Gi": "0", "hugepages-2Mi": "0", "nvidia.com/gpu": "0"}
    image = f"registry.example.com/a-team-with-a-long-name/an-image-with-a-long-name-{number % 5}"
    images = [
        {
            "names": [f"{image}-{index}@sha256:{index:064x}", f"{image}-{index}:v1.{index}.0-with-a-suffix"],
            "sizeBytes": 10**9,
        }
        for index in range(25)
    ]
    info = dict.fromkeys(("bootID", "machineID", "systemUUID"), "f" * 36)
    info |= {"architecture": "amd64", "operatingSystem": "linux", "osImage": "Ubuntu 24.04.3 LTS"}
    info |= {"kernelVersion": "6.8.0-60-generic", "containerRuntimeVersion": "containerd://2.1.4"}
    info |= {"kubeletVersion": "v1.37.0", "kubeProxyVersion": ""}
    addresses = [{"type": "InternalIP", "address": f"10.0.{number // 250}.{number % 250}"}]
    return {
        "status": {
            "capacity": room,
            "allocatable": room,
            "images": images,
            "nodeInfo": info,
            "addresses": addresses,
            "conditions": conditions(0),
        }
    }


def conditions(moment: float) -> list[Object]:
    beat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    kinds = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    return [
        {
            "type": kind,
            "status": status,
            "reason": f"Kubelet{kind}",
            "message": f"the kubelet reports {kind}, as it does at every heartbeat",
            "lastHeartbeatTime": beat,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, status in kinds.items()
    ]


def gpu_node(number: int) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "metadata": {"name": name_of(number)}}


def gpu_node_status(number: int, turn: int = 0) -> Object:
    """The status of a GpuNode with one container that holds a slot, which changes with `turn`."""
    gpus = [
        {
            "uuid": uuid(number, index),
            "index": index,
            "minor": index,
            "product": "NVIDIA H200",
            "memoryMib": 143155,
            "sms": 132,
            "computeCapability": "9.0",
            "numaNode": index // 4,
            "computeMode": "Default",
        }
        for index in range(GPUS)
    ]
    holder = {"uuid": uuid(number, 0), "share": "scale", "slots": [turn % 8], "pods": [f"team/pod-{turn}"]}
    status = {
        "observedGeneration": 1,
        "driverVersion": "580.95.05",
        "cudaVersion": "13.0",
        "agentVersion": "0.1.0",
        "gpus": gpus,
        "holders": [holder] if turn else [],
    }
    return {"status": status}


def share() -> Object:
    spec = {
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        "clients": {"perGpu": 8, "memory": {"default": "16Gi"}},
    }
    return {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": {"name": "scale"}, "spec": spec}


def name_of(number: int) -> str:
    return f"gpu-node-{number:05}"


def uuid(number: int, index: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-{index:012x}"


async def fill(kube: Kube, nodes: int) -> Object:
    """Returns how large one object of each kind is as JSON, in bytes."""
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await until(lambda: _served(kube), 60.0)
    await all_of(_make(kube, number) for number in range(nodes))
    await kube.create(GPU_SHARES, share())
    return {resource.plural: len(json.dumps(await kube.get(resource, name_of(0)))) for resource in (NODES, GPU_NODES)}


async def _make(kube: Kube, number: int) -> None:
    name = name_of(number)
    await kube.create(NODES, node(number))
    await kube.patch(NODES, name, node_status(number), manager="kubelet", subresource="status")
    made = await kube.create(GPU_NODES, gpu_node(number))
    await kube.create(LEASES, heartbeat_lease(name, made, _heartbeat(number)), namespace=NAMESPACE)
    await kube.patch(GPU_NODES, name, gpu_node_status(number), manager="gpushare-agent", subresource="status")


def _heartbeat(number: int) -> Object:
    return heartbeat_spec(f"gpushare-agent-{number:05}", datetime.now(UTC))


async def renew(kube: Kube, nodes: int) -> None:
    """Every agent's heartbeat in its rhythm, spread over the period as agents do, until cancelled."""

    async def renewed(number: int) -> None:
        body = {"spec": _heartbeat(number)}
        await kube.patch(LEASES, name_of(number), body, manager="gpushare-agent", namespace=NAMESPACE)

    parts = max(1, min(nodes, round(RENEW_SECONDS * 10)))
    while True:
        for part in range(parts):
            began = time.monotonic()
            await all_of(renewed(number) for number in range(part, nodes, parts))
            await asyncio.sleep(max(0.0, RENEW_SECONDS / parts - (time.monotonic() - began)))


async def _served(kube: Kube) -> bool:
    return await kube.served(GPU_SHARES) and await kube.served(GPU_NODES)


async def until(holds: Callable[[], Awaitable[bool]], limit: float) -> None:
    end = time.monotonic() + limit
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit:.0f} s")
        await asyncio.sleep(0.5)


async def all_of(requests: Iterable[Awaitable[object]], at_once: int = AT_ONCE) -> None:
    limit = asyncio.Semaphore(at_once)

    async def awaited(request: Awaitable[object]) -> None:
        async with limit:
            await request

    await asyncio.gather(*(awaited(request) for request in requests))
