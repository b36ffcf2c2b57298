"""Rules that hold for every fleet."""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.api.gpunode import Assignment, GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.planner import FleetPlan, NodeView, Snapshot, plan

NAMES = ("a", "b", "c")


@st.composite
def fleets(draw: st.DrawFn, make: Any) -> Snapshot:
    shares = [
        make.share(
            name,
            age=draw(st.integers(0, 3)),
            deleting=draw(st.booleans()),
            finalizer=draw(st.booleans()),
            gpus={"perNode": per_node} if (per_node := draw(st.none() | st.integers(1, 3))) else {},
            nodeSelector=draw(st.sampled_from([{}, {"matchLabels": {"pool": "gpu"}}])),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]
    nodes = [_node(draw, make, f"n{number}") for number in range(draw(st.integers(1, 3)))]
    return Snapshot(tuple(shares), tuple(nodes), draw(st.sampled_from([frozenset(), frozenset({"n0"})])))


def _node(draw: st.DrawFn, make: Any, name: str) -> NodeView:
    count = draw(st.integers(0, 4))
    owners = [draw(st.none() | st.sampled_from((*NAMES, "ghost"))) for _ in range(count)]
    assigned = [index for index in range(count) if owners[index] and draw(st.booleans())]
    running = [index for index in range(count) if owners[index] and draw(st.booleans())]
    occupied = [index for index in running if draw(st.booleans())]
    node: NodeView = make.node(
        name,
        gpus=[make.gpu(index, name, lost=draw(st.booleans())) for index in range(count) if draw(st.integers(0, 9))],
        assignments=draw(
            st.none() | st.just([make.assigned(owners[index], index, name, draw(st.booleans())) for index in assigned])
        ),
        daemons=[make.daemon(owners[index], index, name, drained=draw(st.booleans())) for index in running],
        held={(index, owners[index]): [0, 1] for index in occupied},
        observed=draw(st.integers(0, 2)),
        labels=draw(st.sampled_from([{}, {"pool": "gpu"}, {"share.gpushare.dev/a": "true"}])),
        ready=draw(st.booleans()),
        allocatable=draw(st.sampled_from([frozenset(), frozenset({"nvidia.com/gpu"})])),
    )
    return node


def carried_out(snapshot: Snapshot, decided: FleetPlan) -> Snapshot:
    """The fleet after the plan was written, before any agent has moved."""
    nodes = []
    for node in snapshot.nodes:
        labels = {key: value for key, value in node.labels.items() if not key.startswith("share.gpushare.dev/")}
        labels |= {f"share.gpushare.dev/{share}": "true" for share in decided.labels[node.name]}
        gpu_node = node.gpu_node
        if gpu_node is not None and node.name in decided.assignments:
            gpu_node = _assigned(gpu_node, decided.assignments[node.name])
        nodes.append(replace(node, labels=labels, gpu_node=gpu_node))
    shares = tuple(_with_finalizer(share, decided) for share in snapshot.shares if share.name not in decided.released)
    return Snapshot(shares, tuple(nodes), snapshot.nvidia_dra_nodes)


def _assigned(gpu_node: GpuNode, assignments: tuple[Assignment, ...]) -> GpuNode:
    if gpu_node.spec.assignments is not None and tuple(gpu_node.spec.assignments) == assignments:
        return gpu_node
    metadata = gpu_node.metadata.model_copy(update={"generation": gpu_node.metadata.generation + 1})
    spec = gpu_node.spec.model_copy(update={"assignments": list(assignments)})
    return gpu_node.model_copy(update={"metadata": metadata, "spec": spec})


def _with_finalizer(share: GpuShare, decided: FleetPlan) -> GpuShare:
    if share.name not in decided.finalizers:
        return share
    metadata = share.metadata.model_copy(update={"finalizers": ["gpushare.dev/drain"]})
    return share.model_copy(update={"metadata": metadata})


@given(data=st.data())
def test_every_plan_keeps_the_rules(make: Any, data: st.DataObject) -> None:
    snapshot = data.draw(fleets(make))
    decided = plan(snapshot)
    deleting = {share.name for share in snapshot.shares if share.deleting}
    for node in snapshot.nodes:
        assert node.gpu_node is not None
        after = {item.uuid: item for item in decided.assignments.get(node.name, ())}
        before = node.gpu_node.spec.assignments
        counted = Counter(item.uuid for item in decided.assignments.get(node.name, ()))
        assert all(number == 1 for number in counted.values()), "a GPU belongs to one share"
        for holder in node.gpu_node.status.holders:
            assert after[holder.uuid].share == holder.share, "what a container holds is never unassigned"
        for daemon in node.gpu_node.status.daemons:
            item = after.get(daemon.uuid)
            left = before is not None and daemon.uuid not in {assignment.uuid for assignment in before}
            assert (item and item.share == daemon.share) or (item is None and (daemon.drained or left))
            assert daemon.share in decided.labels[node.name], "a daemon keeps its pod"
        for item in after.values():
            assert item.draining or item.share not in deleting, "a deleted share offers no more slots"
    assert not any(share in shares for share in decided.released for shares in decided.labels.values())


def _assigned_now(snapshot: Snapshot) -> set[str]:
    nodes = (node.gpu_node for node in snapshot.nodes if node.gpu_node is not None)
    return {item.uuid for node in nodes for item in node.spec.assignments or ()}


def _uuids(decided: FleetPlan) -> set[str]:
    return {item.uuid for items in decided.assignments.values() for item in items}


@given(data=st.data())
def test_a_plan_that_was_carried_out_is_planned_again_unchanged(make: Any, data: st.DataObject) -> None:
    snapshot = data.draw(fleets(make))
    first = plan(snapshot)
    once = carried_out(snapshot, first)
    again = plan(once)
    freed = _assigned_now(snapshot) - _uuids(first)
    assume(not freed & _uuids(again))
    # A node whose last GPU has left, and that names none, may be left out: what is not named is not changed.
    assert first.assignments | again.assignments == first.assignments
    assert again.labels == first.labels
    assert again.daemon_sets == first.daemon_sets
    assert not again.finalizers
    assert not again.released


@given(data=st.data())
def test_the_order_in_which_things_are_listed_does_not_matter(make: Any, data: st.DataObject) -> None:
    snapshot = data.draw(fleets(make))
    shuffled = Snapshot(
        tuple(data.draw(st.permutations(snapshot.shares))),
        tuple(data.draw(st.permutations([_shuffled(data, node) for node in snapshot.nodes]))),
        snapshot.nvidia_dra_nodes,
    )
    assert plan(shuffled) == plan(snapshot)


def _shuffled(data: st.DataObject, node: NodeView) -> NodeView:
    assert node.gpu_node is not None
    status = node.gpu_node.status
    lists = {field: data.draw(st.permutations(getattr(status, field))) for field in ("gpus", "daemons", "holders")}
    return replace(node, gpu_node=node.gpu_node.model_copy(update={"status": status.model_copy(update=lists)}))
