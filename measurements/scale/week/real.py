"""Holds the model against the real kube-scheduler: is the node that it takes among those that the model calls the best?

    python -m measurements.scale.week.real --out measurements/results/scale/week-scheduler.json

etcd, kube-apiserver and kube-scheduler of the local cluster's Kubernetes; 20 nodes without a kubelet, of four shapes,
which offer whole GPUs, slots of two a GPU, or claims. Random pods come one by one, and go in between; the scheduler
runs as it is by default, and then packed. After each decision the model follows the real one, so each is a test of its
own. `asTheOtherModel` counts those that are also best by the other way, packed or not: a control, which must be fewer.
Of claims the device is compared too. Ended pods are removed with their claims here, since no controller runs.
"""

import argparse
import asyncio
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from gpushare.api import names
from gpushare.api.gpushare import GpuShare, Placement
from gpushare.controller.claims.objects import device_classes
from gpushare.controller.claims.views import claim as read_claim
from gpushare.kube.client import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kube,
    Object,
    connect,
)
from measurements.scale import claims as burst
from measurements.scale import results
from measurements.scale.week.arrangements import CLAIMS, WHOLE, slots
from measurements.scale.week.gpus import claimed_percent
from measurements.scale.week.scheduler import GPU_WEIGHT, PoolNodes, Request, Scheduler
from measurements.scale.week.trace import Shape
from tests.cluster.control_plane import ControlPlane, programs, stop

WHOLE_RESOURCE = "nvidia.com/gpu"
SLOT_RESOURCE = names.slot_resource("halves")
NAMESPACE = "default"
DECISION_SECONDS = 30.0
SEEN_SECONDS = 0.5
"""The time until the scheduler has surely seen that pods went."""
ENDING = 0.3
"""The part of the pods before each of which three others go."""
SHAPES = (Shape(96_000, 393_216, 8), Shape(104_000, 524_288, 2), Shape(16_000, 122_880, 2), Shape(32_000, 131_072, 4))
POOLS = {"whole": WHOLE, "halves": slots(2), "parts": CLAIMS}


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that runs, by its name: its node in the pool and what it took there; the real device of a claim."""

    name: str
    request: Request
    node: int
    taken: object


class Fleet:
    """The 20 nodes as the model has them: those of each pool, in the order of the pool."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self.shapes = [chance.choice(SHAPES) for _ in range(nodes)]
        self.pool_of = [list(POOLS)[number % len(POOLS)] for number in range(nodes)]
        self.names: dict[str, list[str]] = {name: [] for name in POOLS}
        for number, pool in enumerate(self.pool_of):
            self.names[pool].append(f"fake-{number}")
        self.gpus = {
            name: [
                POOLS[name].gpus(shape.gpus, Placement.SPREAD)
                for shape, pool in zip(self.shapes, self.pool_of, strict=True)
                if pool == name
            ]
            for name in POOLS
        }
        self.pools = {name: self._pool(name) for name in POOLS}

    def _pool(self, name: str) -> PoolNodes:
        mine = [(number, shape) for number, shape in enumerate(self.shapes) if self.pool_of[number] == name]
        return PoolNodes(
            np.array([number for number, _ in mine], dtype=np.int64),
            np.array([[shape.cpu_milli for _, shape in mine], [shape.memory_mib for _, shape in mine]], dtype=np.int64),
            np.array([shape.gpus * POOLS[name].per_gpu for _, shape in mine], dtype=np.int64),
            np.array([gpus.room() for gpus in self.gpus[name]], dtype=np.int64),
            scored=POOLS[name].extended,
        )

    def take(self, name: str, request: Request, node: int) -> Placed:
        gpus = self.gpus[request.pool][node]
        taken = gpus.take(request.units)
        self._changed(request, node, 1)
        return Placed(name, request, node, taken)

    def give_back(self, placed: Placed) -> None:
        self.gpus[placed.request.pool][placed.node].give_back(placed.taken)
        self._changed(placed.request, placed.node, -1)

    def _changed(self, request: Request, node: int, sign: int) -> None:
        pool = self.pools[request.pool]
        pool.change(node, request, sign)
        pool.room[node] = self.gpus[request.pool][node].room()


def random_request(chance: random.Random) -> Request:
    pool = chance.choice(list(POOLS))
    units = {
        "whole": chance.choice((1, 1, 1, 2, 4, 8)),
        "halves": 1,
        "parts": claimed_percent(chance.choice((1000, 810, 470, 460, 320, 220, 50))),
    }[pool]
    return Request(chance.randrange(1, 13) * 1000, chance.randrange(2, 60) * 1024, pool, units)


def scheduler_configuration(kubeconfig: Path, *, packed: bool) -> Object:
    resources = [
        {"name": "cpu", "weight": 1},
        {"name": "memory", "weight": 1},
        *({"name": name, "weight": GPU_WEIGHT} for name in (WHOLE_RESOURCE, SLOT_RESOURCE)),
    ]
    fit = {"scoringStrategy": {"type": "MostAllocated", "resources": resources}}
    profile: Object = {"schedulerName": "default-scheduler"}
    if packed:
        profile["pluginConfig"] = [{"name": "NodeResourcesFit", "args": fit}]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
    }


@contextmanager
def scheduler(plane: ControlPlane, *, packed: bool) -> Iterator[None]:
    config = plane.directory / "scheduler.yaml"
    config.write_text(yaml.safe_dump(scheduler_configuration(plane.kubeconfig, packed=packed)))
    with (plane.directory / "kube-scheduler.log").open("ab") as log:
        process = subprocess.Popen(
            [str(programs() / "kube-scheduler"), f"--config={config}", "--secure-port=0"], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        stop(process)


async def offer(kube: Kube, fleet: Fleet) -> None:
    share = {
        "metadata": {"name": burst.SHARE, "uid": "00000000-0000-0000-0000-000000000000"},
        "spec": {"clients": {"perGpu": burst.PER_GPU, "memory": {"default": "1Gi"}}, "delivery": "ResourceClaim"},
    }
    (device_class,) = device_classes(GpuShare.model_validate(share))
    del device_class["metadata"]["ownerReferences"]  # there is no such share here
    await kube.create(DEVICE_CLASSES, device_class)
    for number, (shape, pool) in enumerate(zip(fleet.shapes, fleet.pool_of, strict=True)):
        name = f"fake-{number}"
        room = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.memory_mib}Mi", "pods": "110"}
        if pool == "whole":
            room[WHOLE_RESOURCE] = str(shape.gpus)
        elif pool == "halves":
            room[SLOT_RESOURCE] = str(shape.gpus * POOLS[pool].per_gpu)
        else:
            await kube.create(RESOURCE_SLICES, burst.resource_slice(name, shape.gpus))
        await kube.create(NODES, burst.node(name))
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        await kube.patch(NODES, name, {"status": status}, manager="week", subresource="status")


async def create(kube: Kube, number: int, request: Request) -> None:
    made = burst.pod(number, slot=request.pool != "parts")
    amounts = {"cpu": f"{request.cpu_milli}m", "memory": f"{request.memory_mib}Mi"}
    resources = made["spec"]["containers"][0]["resources"]
    resources["requests"] = amounts
    if request.pool == "parts":
        await kube.create(RESOURCE_CLAIMS, burst.claim(number, burst.Size(request.units, 1)), NAMESPACE)
    else:
        name = WHOLE_RESOURCE if request.pool == "whole" else SLOT_RESOURCE
        resources["limits"] = {name: str(request.units)}
    await kube.create(PODS, made, NAMESPACE)


async def decision(kube: Kube, number: int) -> str | None:
    """The node; None where the scheduler finds none. TimeoutError where it says neither."""
    end = time.monotonic() + DECISION_SECONDS
    while time.monotonic() < end:
        pod = await kube.get(PODS, f"p{number}", NAMESPACE)
        if pod["spec"].get("nodeName"):
            return str(pod["spec"]["nodeName"])
        if any(
            condition.get("reason") == "Unschedulable"
            for condition in (pod.get("status") or {}).get("conditions") or ()
        ):
            return None
        await asyncio.sleep(0.02)
    raise TimeoutError(f"the scheduler did not decide on pod p{number} within {DECISION_SECONDS:.0f} s")


async def device_of(kube: Kube, number: int) -> str:
    claim = read_claim(await kube.get(RESOURCE_CLAIMS, f"c{number}", NAMESPACE))
    assert claim is not None
    return claim.held[0].device[1]


async def remove(kube: Kube, number: int, request: Request) -> None:
    await kube.delete(PODS, f"p{number}", NAMESPACE)
    if request.pool == "parts":
        claim = f"c{number}"
        await kube.delete(RESOURCE_CLAIMS, claim, NAMESPACE)
        if await kube.find(RESOURCE_CLAIMS, claim, NAMESPACE) is not None:
            body: Object = {"metadata": {"finalizers": None}}
            await kube.patch(RESOURCE_CLAIMS, claim, body, manager="week", namespace=NAMESPACE)


async def compare(kubeconfig: Path, nodes: int, pods: int, seed: int, *, packed: bool) -> Object:
    """How many of the real scheduler's decisions are among those that the model calls the best."""
    chance = random.Random(seed)
    fleet = Fleet(nodes, chance)
    kube = await connect("gpushare-week", kubeconfig)
    counted = ("decisions", "placed", "asTheModel", "oneBestNode", "asTheOtherModel", "devices", "firstFits")
    counts = dict.fromkeys(counted, 0)
    differing: list[Object] = []
    running: dict[int, Placed] = {}
    try:
        await offer(kube, fleet)
        await asyncio.sleep(SEEN_SECONDS)
        model, other = (Scheduler(nodes, random.Random(seed), packed=way) for way in (packed, not packed))
        for number in range(pods):
            if running and chance.random() < ENDING:
                for gone in chance.sample(sorted(running), min(len(running), 3)):
                    await remove(kube, gone, running[gone].request)
                    fleet.give_back(running.pop(gone))
                await asyncio.sleep(SEEN_SECONDS)
            request = random_request(chance)
            names_of = fleet.names[request.pool]
            best = {names_of[node] for node in model.best(fleet.pools[request.pool], request)}
            others = {names_of[node] for node in other.best(fleet.pools[request.pool], request)}
            await create(kube, number, request)
            chosen = await decision(kube, number)
            counts["decisions"] += 1
            counts["oneBestNode"] += len(best) == 1
            counts["asTheOtherModel"] += chosen in others or (chosen is None and not others)
            if chosen in best or (chosen is None and not best):
                counts["asTheModel"] += 1
            else:
                differing.append({"pod": number, "pool": request.pool, "chosen": chosen, "model": sorted(best)})
            if chosen is None:
                await remove(kube, number, request)
                continue
            counts["placed"] += 1
            running[number] = fleet.take(f"p{number}", request, names_of.index(chosen))
            if request.pool == "parts":
                counts["devices"] += 1
                taken = running[number].taken
                assert isinstance(taken, tuple)
                gpu, _ = taken
                counts["firstFits"] += await device_of(kube, number) == f"gpu-{gpu}"
    finally:
        await kube.close()
    return {**counts, "differing": differing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--pods", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    results.add_out(parser)
    args = parser.parse_args()
    result: Object = {"what": "python -m measurements.scale.week.real; see its documentation", "kubernetes": "v1.37.0"}
    for way in ("spread", "packed"):
        with tempfile.TemporaryDirectory() as scratch:
            plane = ControlPlane(Path(scratch) / "cluster").create()
            with plane.running(), scheduler(plane, packed=way == "packed"):
                packed = way == "packed"
                result[way] = asyncio.run(compare(plane.kubeconfig, args.nodes, args.pods, args.seed, packed=packed))
    results.write({**result, "nodes": args.nodes, "seed": args.seed}, args.out)


if __name__ == "__main__":
    main()
