"""A burst of ResourceClaims of random sizes at once: is a GPU ever over-packed, how fast and how well are they packed?

Needs a cluster of its own without gpushare, which it fills: nodes without a kubelet, each with a ResourceSlice like the
agent's, and as many pods with a claim each. A pod is counted once it is bound. How well GPUs are packed is told by the
part of all threads that claims got, beside what first-fit decreasing, which knows all claims beforehand, would reach.

    python3 -m localcluster up --name claims && eval "$(python3 -m localcluster env --name claims)"
    python -m measurements.scale.claims --nodes 1 --gpus 8 --claims 200 --seed 1

With `--slots` the same number of pods asks for a slot of the kubelet's each, of which every GPU has 48: what placement
takes without claims.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.objects import device_classes
from gpushare.controller.claims.views import claim as read_claim
from gpushare.controller.claims.views import devices as read_devices
from gpushare.kube.client import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kube, Object, connect
from gpushare.planner.pending import consumption
from measurements.scale.nodes import all_of

NAMESPACE = "default"
SHARE = "burst"
PER_GPU, GPU_GIB = 48, 139
AT_ONCE = 32
STILL_SECONDS = 20.0
"""Nobody else is bound any more once nothing has changed for so long."""


@dataclass(frozen=True, slots=True)
class Size:
    threads: int
    memory_gib: int


def sizes(count: int, gpus: int, seed: int) -> list[Size]:
    """Together a little more than the GPUs have, so that the last claims must find what is left."""
    mean = 110 * gpus / count
    chance = random.Random(seed)
    most_memory = max(2, int(2 * GPU_GIB * gpus / count * 0.8))
    return [
        Size(min(100, chance.randint(1, max(1, round(2 * mean) - 1))), chance.randint(1, most_memory))
        for _ in range(count)
    ]


def first_fit_decreasing(wanted: Iterable[Size], gpus: int) -> list[Size]:
    """The claims that are placed, each on the first GPU with room, the largest first."""
    left = [[100, GPU_GIB, PER_GPU] for _ in range(gpus)]
    placed = []
    for size in sorted(wanted, key=lambda size: size.threads / 100 + size.memory_gib / GPU_GIB, reverse=True):
        need = (size.threads, size.memory_gib, 1)
        for room in left:
            if all(have >= asked for have, asked in zip(room, need, strict=True)):
                room[:] = [have - asked for have, asked in zip(room, need, strict=True)]
                placed.append(size)
                break
    return placed


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": SHARE}}}


def node_status(slots: int = 0) -> Object:
    room = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
    if slots:
        room[names.slot_resource(SHARE)] = str(slots)
    return {"status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}


def resource_slice(name: str, gpus: int) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-{names.DRA_DRIVER}"},
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(index) for index in range(gpus)],
        },
    }


def _device(index: int) -> Object:
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {names.ATTRIBUTE_SHARE: {"string": SHARE}},
        "capacity": {
            names.CAPACITY_THREADS: _capacity("100", {"default": "10", "validRange": {"min": "1", "step": "1"}}),
            names.CAPACITY_MEMORY: _capacity(
                f"{GPU_GIB}Gi", {"default": "1Gi", "validRange": {"min": "512Mi", "step": "1Mi"}}
            ),
            names.CAPACITY_CLIENTS: _capacity(str(PER_GPU), {"default": "1", "validValues": ["1"]}),
        },
    }


def _capacity(value: str, policy: Object) -> Object:
    return {"value": value, "requestPolicy": policy}


def claim(number: int, size: Size) -> Object:
    requests = {names.CAPACITY_THREADS: str(size.threads), names.CAPACITY_MEMORY: f"{size.memory_gib}Gi"}
    exactly = {"deviceClassName": names.device_class(SHARE), "capacity": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"c{number}", "labels": {"app": SHARE}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(number: int, *, slot: bool) -> Object:
    """Tolerates that its node has no kubelet. With a slot, or with the claim of its number."""
    by_slot = {"limits": {names.slot_resource(SHARE): "1"}}
    container = {"name": "app", "image": "none", "resources": by_slot if slot else {"claims": [{"name": "gpu"}]}}
    spec = {
        "nodeSelector": {"pool": SHARE},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [] if slot else [{"name": "gpu", "resourceClaimName": f"c{number}"}],
        "containers": [container],
    }
    metadata = {"name": f"p{number}", "labels": {"app": SHARE}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def offer(kube: Kube, nodes: int, gpus: int) -> None:
    """The nodes, and what each has for claims."""
    share = GpuShare.model_validate(
        {
            "metadata": {"name": SHARE, "uid": "00000000-0000-0000-0000-000000000000"},
            "spec": {"clients": {"perGpu": PER_GPU, "memory": {"default": "1Gi"}}, "delivery": "ResourceClaim"},
        }
    )
    (device_class,) = device_classes(share)
    del device_class["metadata"]["ownerReferences"]  # there is no such share here
    await kube.create(DEVICE_CLASSES, device_class)
    await make_nodes(kube, nodes, 0)
    for number in range(nodes):
        await kube.create(RESOURCE_SLICES, resource_slice(f"fake-{number}", gpus))


async def make_nodes(kube: Kube, nodes: int, slots: int) -> None:
    for number in range(nodes):
        name = f"fake-{number}"
        await kube.create(NODES, node(name))
        await kube.patch(NODES, name, node_status(slots), manager="burst", subresource="status")


async def burst(kube: Kube, pods: int, *, slot: bool) -> Object:
    began = time.monotonic()
    creating = asyncio.create_task(
        all_of((kube.create(PODS, pod(n, slot=slot), NAMESPACE) for n in range(pods)), AT_ONCE)
    )
    bound, seconds = await _until_still(kube, began, pods)
    await creating
    return {"bound": bound, "seconds": round(seconds, 1), "podsPerSecond": round(bound / max(seconds, 0.1), 1)}


async def _until_still(kube: Kube, began: float, most: int) -> tuple[int, float]:
    """(pods bound, seconds from the first creation to the last binding that was seen)."""
    bound, changed = 0, time.monotonic()
    while bound < most and time.monotonic() - changed < STILL_SECONDS:
        await asyncio.sleep(0.5)
        pods = (await kube.list_all(PODS, NAMESPACE, labelSelector=f"app={SHARE}"))["items"]
        now = sum(1 for item in pods if item["spec"].get("nodeName"))
        if now != bound:
            bound, changed = now, time.monotonic()
    return bound, changed - began


async def packed(kube: Kube) -> Object:
    """Judged by what stands in the API alone."""
    slices = (await kube.list_all(RESOURCE_SLICES))["items"]
    claims = (await kube.list_all(RESOURCE_CLAIMS, NAMESPACE))["items"]
    devices = [device for item in slices for device in read_devices(item)]
    used = consumption(claim for item in claims if (claim := read_claim(item)))
    over = [
        (device.key, name)
        for device in devices
        for name, capacity in device.capacity.items()
        if used.get(device.key, {}).get(name, 0) > capacity.value
    ]
    threads = sum(amounts.get(names.CAPACITY_THREADS, 0) for amounts in used.values())
    clients = sum(amounts.get(names.CAPACITY_CLIENTS, 0) for amounts in used.values())
    return {"overPacked": len(over), "claims": clients, "threadsPercent": round(threads / len(devices), 1)}


async def run(nodes: int, gpus: int, count: int, seed: int) -> Object:
    wanted = sizes(count, nodes * gpus, seed)
    best = first_fit_decreasing(wanted, nodes * gpus)
    kube = await connect("gpushare-burst")
    try:
        await offer(kube, nodes, gpus)
        await all_of(
            (kube.create(RESOURCE_CLAIMS, claim(n, size), NAMESPACE) for n, size in enumerate(wanted)), AT_ONCE
        )
        result = await burst(kube, count, slot=False)
        result["scheduler"] = await packed(kube)
    finally:
        await kube.close()
    threads = round(sum(size.threads for size in best) / (nodes * gpus), 1)
    asked = round(sum(size.threads for size in wanted) / (nodes * gpus), 1)
    result["firstFitDecreasing"] = {"claims": len(best), "threadsPercent": threads}
    return {"gpus": nodes * gpus, "claims": count, "seed": seed, "threadsAskedPercent": asked, **result}


async def run_slots(nodes: int, gpus: int, count: int) -> Object:
    kube = await connect("gpushare-burst")
    try:
        await make_nodes(kube, nodes, gpus * PER_GPU)
        return {"gpus": nodes * gpus, "pods": count, **await burst(kube, count, slot=True)}
    finally:
        await kube.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 1), ("gpus", 8), ("claims", 200), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--slots", action="store_true", help="slots in place of claims")
    args = parser.parse_args()
    if args.slots:
        result = asyncio.run(run_slots(args.nodes, args.gpus, args.claims))
    else:
        result = asyncio.run(run(args.nodes, args.gpus, args.claims, args.seed))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
