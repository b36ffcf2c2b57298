"""What is measured: each case takes a number of nodes and gives what is timed; to make its input is not."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta

from gpushare.api.gpushare import GpuShare
from gpushare.controller.claims.cache import ClaimCache
from gpushare.controller.claims.differences import claim_writes
from gpushare.controller.claims.objects import device_classes, share_templates
from gpushare.controller.differences import differences
from gpushare.controller.heartbeats.ages import HeartbeatAges
from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Object,
    Resource,
)
from gpushare.kube.coordination.heartbeat import Renewal
from gpushare.planner import FleetMemory, MpsPod, Snapshot, Template, plan
from gpushare.planner.pending import pending
from measurements.scale.decisions.objects import (
    CLAIMS_PER_NODE,
    GIB,
    NOW,
    cache_of,
    demand_of,
    full,
    gpu_node,
    node,
    resource_claim,
    resource_slice,
    served,
    settled,
    share,
)

NOW_TEXT = "2026-03-01T00:00:00Z"
OVERLAPPING = 100
CHANGED = 16
"""Nodes that changed since the plan before, where there was one; as many as are written to at once."""
SETTINGS = OperatorSettings(namespace="gpushare-system", pod_name="operator-0", image="gpushare:scale")

Case = Callable[[int], Callable[[], object]]


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
    gpu_nodes = [gpu_node(n, "share-00000") for n in range(count)]
    snapshot = cache_of(shares, [node(n, "gpu") for n in range(count)], gpu_nodes).snapshot(NOW)
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


def _again(snapshot: Snapshot) -> Callable[[], object]:
    """The plan after one of the same fleet, of which CHANGED nodes are others since."""
    memory = FleetMemory()
    plan(snapshot, memory)

    def work() -> object:
        nodes = (*(replace(node) for node in snapshot.nodes[:CHANGED]), *snapshot.nodes[CHANGED:])
        return plan(replace(snapshot, nodes=nodes), memory)

    return work


def plan_served(count: int) -> Callable[[], object]:
    snapshot = served(count, 1)
    return lambda: plan(snapshot)


def plan_again(count: int) -> Callable[[], object]:
    return _again(served(count, 1))


def plan_again_share_per_ten_nodes(count: int) -> Callable[[], object]:
    return _again(served(count, max(1, count // 10)))


def plan_again_full_slots(count: int) -> Callable[[], object]:
    """64 slot pods on each node."""
    return _again(served(count, max(1, count // 10), slots=8))


def pending_of_few_sizes(count: int) -> Callable[[], object]:
    demand = demand_of(count, 80, lambda n: ((30, 50, 70)[n % 3], 16 * GIB))
    return lambda: pending(replace(demand), NOW)  # what a demand derives is found once


def pending_that_fit(count: int) -> Callable[[], object]:
    demand = demand_of(count, 20, lambda n: ((30, 50, 70)[n % 3], 16 * GIB))
    return lambda: pending(replace(demand), NOW)  # what a demand derives is found once


def pending_of_any_size(count: int) -> Callable[[], object]:
    """Every claim asks for another amount of memory, as tenants may."""
    demand = demand_of(count, 80, lambda n: (30, 16 * GIB + n * 2**20))
    return lambda: pending(replace(demand), NOW)  # what a demand derives is found once


class _Listing:
    """An API server that lists these objects; nothing changes."""

    def __init__(self, objects: dict[Resource, list[Object]]) -> None:
        self._objects = objects

    async def pages(
        self, resource: Resource, keep: Callable[[Object], object], namespace: str | None = None, **_: str
    ) -> AsyncIterator[tuple[list[object], str]]:
        yield [kept for obj in self._objects.get(resource, ()) if (kept := keep(obj)) is not None], "1"

    async def watch(self, *_: object) -> AsyncIterator[Object]:
        await asyncio.Event().wait()
        yield {}


async def _follow(claims: ClaimCache, objects: dict[Resource, list[Object]]) -> None:
    """Lists them as the operator does."""
    claims.follow(_Listing(objects))  # type: ignore[arg-type]
    while not claims.known:  # noqa: ASYNC110 - each round is a step of every task
        await asyncio.sleep(0)
    await claims.close()


def templates_in_place(count: int) -> Callable[[], object]:
    """Ten shares with three sizes each, which every namespace has; one namespace for each node."""
    sizes = [{"name": f"s{number}", "threads": 10 * number, "memory": f"{number}Gi"} for number in (1, 2, 3)]
    shares = [
        GpuShare.model_validate(share(f"share-{index:05}", age=index, delivery="ResourceClaim", sizes=sizes))
        for index in range(10)
    ]
    spaces = [{"metadata": {"name": f"ns-{n:05}"}} for n in range(count)]
    bodies = [body for item in shares for body in share_templates(item)]
    objects = {
        NAMESPACES: spaces,
        DEVICE_CLASSES: [body for item in shares for body in device_classes(item)],
        CLAIM_TEMPLATES: [
            {"metadata": {**body["metadata"], "uid": "u", "namespace": space["metadata"]["name"]}}
            for space in spaces
            for body in bodies
        ],
    }
    claims = ClaimCache(lambda: None)
    asyncio.run(_follow(claims, objects))
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
    """A node holds another slot, turn by turn."""
    cache = settled(count, max(1, count // 10))
    turns = itertools.count(2)

    def work() -> object:
        turn = next(turns)
        changed = full(gpu_node(0, "share-00000"), "share-00000", 1 + turn % 2)
        changed["metadata"]["resourceVersion"] = str(turn)
        cache.gpu_nodes.put(changed)
        return cache.snapshot(NOW)

    return work


def snapshot_of_claims(count: int) -> Callable[[], object]:
    """A claim has another amount, turn by turn."""
    cache = settled(count, 1)
    devices = [resource_slice(n) for n in range(count)]
    claims = [resource_claim(n) for n in range(count * CLAIMS_PER_NODE)]
    asyncio.run(_follow(cache.claims, {RESOURCE_SLICES: devices, RESOURCE_CLAIMS: claims}))
    assert len(cache.snapshot(NOW).demand.claims) == len(claims)
    turns = itertools.count(2)

    def work() -> object:
        turn = next(turns)
        changed = resource_claim(0)
        changed["metadata"]["resourceVersion"] = str(turn)
        changed["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"threads": str(turn % 50)}
        cache.claims.observe(RESOURCE_CLAIMS, changed)
        return cache.snapshot(NOW)

    return work


def heartbeat_ages(count: int) -> Callable[[], object]:
    ages, known = HeartbeatAges(), [f"node-{n:05}" for n in range(count)]
    seen = {name: Renewal(1, NOW_TEXT, "agent") for name in known}
    return lambda: ages.observe(known, seen, time.monotonic())


CASES: tuple[tuple[str, Case, str], ...] = (
    ("planOneShare", plan_one_share, "one share on all nodes, as planned"),
    ("planNewFleet", plan_new_fleet, "one share takes every GPU"),
    ("planSharePerTenNodes", plan_share_per_ten_nodes, "a share for each ten nodes, as planned"),
    ("planServed", plan_served, "one share, every GPU served by a current MPS pod; the first plan, from nothing"),
    ("planAgain", plan_again, "the same, the next plan: 16 nodes changed"),
    ("planAgainSharePerTenNodes", plan_again_share_per_ten_nodes, "a share for each ten nodes, the next plan"),
    ("planAgainFullSlots", plan_again_full_slots, "64 slot pods on each node, the next plan"),
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
    ("snapshot", snapshot_of_cache, "a snapshot after one GpuNode changed"),
    ("snapshotOfClaims", snapshot_of_claims, "ten claims for each node: a snapshot after one claim changed"),
    ("heartbeatAges", heartbeat_ages, "one reading of the agents' heartbeats"),
)
