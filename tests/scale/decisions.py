"""How the cost of each pure decision grows with the cluster: CPU seconds, and the slope on a log–log scale.

    python -m tests.scale.decisions --out docs/results/scale/decisions.json

Nothing but memory is used: the objects are made as the API server would list them and go through the operator's own
cache. A slope of 1 is proportional, 2 is quadratic; it is fitted over all sizes by least squares. A case that took more
than BUDGET seconds is not tried at a larger size. Seconds are CPU time of the process, the best of up to five runs, so
that they depend little on what else the machine does; its load stands beside them.

With `--before COMMIT` the same is asked of that commit, in a process of its own with a git worktree.
"""

import argparse
import gc
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.cache import ClaimCache
from gpushare.controller.claims.differences import claim_writes
from gpushare.controller.claims.objects import claim_templates, device_classes
from gpushare.controller.differences import differences
from gpushare.controller.fleet_cache import FleetCache
from gpushare.controller.heartbeats.ages import HeartbeatAges
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import RENDERED
from gpushare.fleet import MpsPod, Snapshot, Template, plan
from gpushare.fleet.pending import Capacity, Claim, ClaimDevice, Demand, Held, pending
from gpushare.kube.client import CLAIM_TEMPLATES, DEVICE_CLASSES, NAMESPACES, Object
from gpushare.kube.heartbeat import Renewal

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NOW_TEXT = "2026-03-01T00:00:00Z"
LONG_AGO = "2026-01-01T00:00:00Z"
SIZES = (100, 300, 1000, 3000, 5000)
GPUS = 8
OVERLAPPING = 100
BUDGET = 20.0
BEFORE_MOST = 1000
"""Nodes, of an earlier commit: it may be quadratic."""
ENOUGH = 0.2
"""A run that is shorter is repeated."""
GIB = 2**30
SETTINGS = OperatorSettings(namespace="gpushare-system", pod_name="operator-0", image="gpushare:scale")

Case = Callable[[int], Callable[[], object]]
"""From a number of nodes to what is measured; making its input is not."""


# Objects, as the API server has them


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
    """With daemons of `owner` that are ready, where it is given. `held`: by one container on each GPU."""
    limits = {"threads": 100, "memoryMib": 16384, "priority": 0}
    daemon = {"share": owner, "ready": True, "reason": "Ready", "desiredLimits": limits, "currentLimits": limits}
    gpu = {"product": "NVIDIA H200", "memoryMib": 143155, "sms": 132, "computeMode": "Default"}
    gpu |= {"computeCapability": "9.0"}
    uuids = [uuid(number, index) for index in range(GPUS)]
    holder = {"share": owner, "slots": [0], "pods": [f"team/pod-{number}"]}
    return {
        "metadata": {"name": f"node-{number:05}", "generation": 1, "resourceVersion": "1"},
        "spec": {"assignments": [{"uuid": it, "share": owner} for it in uuids]} if owner else {},
        "status": {
            "observedGeneration": 1,
            "gpus": [{"uuid": it, "index": index, "minor": index, **gpu} for index, it in enumerate(uuids)],
            "daemons": [{"uuid": it, **daemon, "serverPid": 1000 + index} for index, it in enumerate(uuids)]
            if owner
            else [],
            "holders": [{"uuid": it, **holder} for it in uuids] if held else [],
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


# What is measured


def plan_one_share(count: int) -> Callable[[], object]:
    snapshot = settled(count, 1).snapshot(NOW)
    return lambda: plan(snapshot)


def plan_new_fleet(count: int) -> Callable[[], object]:
    snapshot = cache_of(
        [share("share-00000")], [node(n, "gpu") for n in range(count)], [gpu_node(n) for n in range(count)]
    ).snapshot(NOW)
    return lambda: plan(snapshot)


def plan_share_per_ten_nodes(count: int) -> Callable[[], object]:
    snapshot = settled(count, max(1, count // 10)).snapshot(NOW)
    return lambda: plan(snapshot)


def plan_overlapping(count: int) -> Callable[[], object]:
    """100 shares select every node; the oldest has all GPUs."""
    shares = [share(f"share-{index:05}", "gpu", index) for index in range(OVERLAPPING)]
    found = [gpu_node(n, "share-00000") for n in range(count)]
    snapshot = cache_of(shares, [node(n, "gpu") for n in range(count)], found).snapshot(NOW)
    return lambda: plan(snapshot)


def plan_overlapping_refused(count: int) -> Callable[[], object]:
    """100 shares select every node, and can take none, since none is Ready."""
    shares = [share(f"share-{index:05}", "gpu", index) for index in range(OVERLAPPING)]
    nodes = [node(n, "gpu", ready=False) for n in range(count)]
    snapshot = cache_of(shares, nodes, [gpu_node(n) for n in range(count)]).snapshot(NOW)
    return lambda: plan(snapshot)


def plan_rollout(count: int) -> Callable[[], object]:
    """Every MPS pod is outdated, and every GPU has a client."""
    cache = cache_of(
        [share("share-00000")],
        [node(n, "gpu") for n in range(count)],
        [gpu_node(n, "share-00000", held=True) for n in range(count)],
    )
    pods = tuple(
        MpsPod(f"mps-{n}", f"uid-{n}", "share-00000", f"node-{n:05}", "old", NOW - timedelta(hours=1))
        for n in range(count)
    )
    taken = cache.snapshot(NOW)
    snapshot = Snapshot(taken.shares, taken.nodes, pods=pods, templates={"share-00000": Template("new")}, now=NOW)
    return lambda: plan(snapshot)


def plan_rollout_of_many(count: int) -> Callable[[], object]:
    """A share for each ten nodes, all MPS pods outdated."""
    shares = max(1, count // 10)
    taken = settled(count, shares).snapshot(NOW)
    pods = tuple(
        MpsPod(f"mps-{n}", f"uid-{n}", f"share-{n % shares:05}", f"node-{n:05}", "old", NOW - timedelta(hours=1))
        for n in range(count)
    )
    templates = {item.name: Template("new") for item in taken.shares}
    snapshot = Snapshot(taken.shares, taken.nodes, pods=pods, templates=templates, now=NOW)
    return lambda: plan(snapshot)


def _device(number: int, name: str = "share-00000") -> ClaimDevice:
    capacity = {
        names.CAPACITY_THREADS: Capacity(100, default=10, least=1),
        names.CAPACITY_MEMORY: Capacity(139 * GIB, default=GIB, least=GIB // 2, step=2**20),
        names.CAPACITY_CLIENTS: Capacity(8, default=1),
    }
    return ClaimDevice(f"node-{number // GPUS:05}", f"gpu-{number % GPUS}", name, capacity)


def _waiting(number: int, threads: int, memory: int, held: tuple[Held, ...] = ()) -> Claim:
    asked = {names.CAPACITY_THREADS: threads, names.CAPACITY_MEMORY: memory}
    return Claim(f"team/claim-{number:06}", f"uid-{number}", "share-00000", NOW - timedelta(hours=1), asked, held)


def _demand(count: int, taken: int, ask: Callable[[int], tuple[int, int]]) -> Demand:
    """A GPU of each node has `taken` percent left; as many claims wait."""
    devices = tuple(_device(number) for number in range(count * GPUS))
    used = {names.CAPACITY_THREADS: taken, names.CAPACITY_MEMORY: 100 * GIB, names.CAPACITY_CLIENTS: 1}
    held = [_waiting(n, taken, 100 * GIB, (Held(device.key, used),)) for n, device in enumerate(devices)]
    waiting = [_waiting(len(held) + n, *ask(n)) for n in range(count)]
    return Demand(devices, tuple(held + waiting))


def pending_of_few_sizes(count: int) -> Callable[[], object]:
    demand = _demand(count, 80, lambda n: ((30, 50, 70)[n % 3], 16 * GIB))
    return lambda: pending(demand, NOW)


def pending_that_fit(count: int) -> Callable[[], object]:
    demand = _demand(count, 20, lambda n: ((30, 50, 70)[n % 3], 16 * GIB))
    return lambda: pending(demand, NOW)


def pending_of_any_size(count: int) -> Callable[[], object]:
    """Every claim asks for another amount of memory, as tenants may."""
    demand = _demand(count, 80, lambda n: (30, 16 * GIB + n * 2**20))
    return lambda: pending(demand, NOW)


class _Claims(ClaimCache):
    """Everything listed; nothing is watched."""

    def __init__(self, objects: dict[object, dict[tuple[str, str], Object]]) -> None:
        super().__init__(lambda: None)
        self._listed = objects

    @property
    def known(self) -> bool:
        return True

    def all(self, resource: object) -> dict[tuple[str, str], Object]:  # type: ignore[override]
        return self._listed[resource]


def templates_in_place(count: int) -> Callable[[], object]:
    """Ten shares with three sizes each, which every namespace has; one namespace for each node."""
    sizes = [{"name": f"s{it}", "threads": 10 * it, "memory": f"{it}Gi"} for it in (1, 2, 3)]
    shares = [
        GpuShare.model_validate(share(f"share-{index:05}", age=index, delivery="ResourceClaim", sizes=sizes))
        for index in range(10)
    ]
    spaces = {("", f"ns-{n:05}"): {"metadata": {"name": f"ns-{n:05}"}} for n in range(count)}
    classes = {("", body["metadata"]["name"]): body for item in shares for body in device_classes(item)}
    templates = {}
    for _, space in spaces:
        for item in shares:
            for body in claim_templates(item, space):
                kept = {**body["metadata"], "uid": "u"}
                kept["annotations"] = {RENDERED: body["metadata"]["annotations"][RENDERED]}
                templates[space, body["metadata"]["name"]] = {"metadata": kept}
    claims = _Claims({NAMESPACES: spaces, DEVICE_CLASSES: classes, CLAIM_TEMPLATES: templates})
    assert claim_writes(shares, claims, SETTINGS) == []
    return lambda: claim_writes(shares, claims, SETTINGS)


def differences_settled(count: int) -> Callable[[], object]:
    cache = settled(count, max(1, count // 10))
    snapshot = cache.snapshot(NOW)
    planned = plan(snapshot)
    return lambda: differences(planned, snapshot, cache, SETTINGS, NOW_TEXT)


def differences_new_fleet(count: int) -> Callable[[], object]:
    cache = cache_of(
        [share("share-00000")], [node(n, "gpu") for n in range(count)], [gpu_node(n) for n in range(count)]
    )
    snapshot = cache.snapshot(NOW)
    planned = plan(snapshot)
    return lambda: differences(planned, snapshot, cache, SETTINGS, NOW_TEXT)


def snapshot_of_cache(count: int) -> Callable[[], object]:
    cache = settled(count, max(1, count // 10))
    return lambda: cache.snapshot(NOW)


def heartbeat_ages(count: int) -> Callable[[], object]:
    ages, known = HeartbeatAges(), [f"node-{n:05}" for n in range(count)]
    seen = {name: Renewal(1, NOW_TEXT, "agent") for name in known}
    return lambda: ages.observe(known, seen, time.monotonic())


CASES: tuple[tuple[str, Case, str], ...] = (
    ("planOneShare", plan_one_share, "one share on all nodes, as planned"),
    ("planNewFleet", plan_new_fleet, "one share takes every GPU"),
    ("planSharePerTenNodes", plan_share_per_ten_nodes, "a share for each ten nodes, as planned"),
    ("planOverlapping", plan_overlapping, "100 shares that select every node, of which one has all GPUs"),
    ("planOverlappingRefused", plan_overlapping_refused, "100 shares that select every node, none of them Ready"),
    ("planRollout", plan_rollout, "every MPS pod of one share is outdated and has clients"),
    ("planRolloutOfMany", plan_rollout_of_many, "every MPS pod is outdated, a share for each ten nodes"),
    ("pendingFewSizes", pending_of_few_sizes, "a waiting claim for each node, of three sizes that fit nowhere"),
    ("pendingThatFit", pending_that_fit, "a waiting claim for each node, of three sizes that fit"),
    ("pendingAnySize", pending_of_any_size, "a waiting claim for each node, each of another size that fits nowhere"),
    ("templatesInPlace", templates_in_place, "30 claim templates in each of as many namespaces as nodes, as desired"),
    ("differencesSettled", differences_settled, "nothing differs, a share for each ten nodes"),
    ("differencesNewFleet", differences_new_fleet, "every node is to be labelled and assigned"),
    ("snapshot", snapshot_of_cache, "a snapshot of the cache"),
    ("heartbeatAges", heartbeat_ages, "one reading of the agents' heartbeats"),
)


def seconds_of(work: Callable[[], object]) -> float:
    gc.collect()
    gc.freeze()  # as the operator does with what it keeps
    best = math.inf
    began = time.process_time()
    for _ in range(5):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
        if time.process_time() - began > ENOUGH * 5:
            break
    gc.unfreeze()
    return best


def slope(points: dict[int, float]) -> float | None:
    """Least squares of log seconds over log nodes; None for fewer than two points."""
    if len(points) < 2:
        return None
    xs, ys = [math.log(size) for size in points], [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return round(sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs), 2)


def measure(wanted: Iterable[str], sizes: Iterable[int]) -> Object:
    chosen, found = set(wanted), {}
    for name, case, what in CASES:
        if chosen and name not in chosen:
            continue
        points: dict[int, float] = {}
        for size in sorted(sizes):
            if points and (size / max(points)) ** 2 * points[max(points)] > BUDGET * 3:
                break
            points[size] = seconds_of(case(size))
            if points[size] > BUDGET:
                break
        found[name] = {
            "what": what,
            "seconds": {str(size): round(value, 6) for size, value in points.items()},
            "slope": slope(points),
        }
        print(f"{name}: {found[name]['seconds']} slope {found[name]['slope']}", file=sys.stderr, flush=True)
    return found


def _of_commit(commit: str, wanted: Iterable[str], sizes: Iterable[int]) -> Object:
    """The same measurement by this file, with the operator of `commit`."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            command = [sys.executable, str(Path(__file__)), "--sizes", *map(str, sizes), "--cases", *wanted]
            environ = {**os.environ, "PYTHONPATH": f"{tree}/operator"}
            answer = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, cwd=tree)
            return dict(json.loads(answer.stdout)["cases"])
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="nodes, of 8 GPUs each")
    parser.add_argument("--cases", nargs="*", default=[], choices=[name for name, _, _ in CASES] + [[]])
    parser.add_argument("--before", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--out", type=Path, help="a JSON file; standard output if left out")
    args = parser.parse_args()
    found: Object = {
        "what": "python -m tests.scale.decisions; CPU seconds, see its documentation",
        "environment": {
            "gpusPerNode": GPUS,
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
        "cases": measure(args.cases, args.sizes),
    }
    if args.before:
        found["environment"]["before"] = args.before
        found["before"] = _of_commit(args.before, args.cases, [size for size in args.sizes if size <= BEFORE_MOST])
    text = json.dumps(found, indent=2) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
