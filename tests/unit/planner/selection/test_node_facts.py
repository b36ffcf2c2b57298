"""A plan looks again only at the nodes that changed: it must be the plan from nothing, however the fleet changed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.api.names import device_name
from gpushare.planner import FleetMemory, MpsPod, NodeView, Snapshot, Template, plan
from gpushare.planner.model import EPOCH
from gpushare.planner.selection.fleet_index import FleetIndex
from tests.unit.planner.selection.test_fleet_index import varied
from tests.unit.planner.test_fleet_rules import NAMES, carried_out


@st.composite
def moments(draw: st.DrawFn, make: Any, seconds: int = 0) -> Snapshot:
    """A fleet with roll-outs and claims."""
    taken = draw(varied(make))
    shares = tuple(_delivered(share, draw(st.booleans())) for share in taken.shares)
    pods = [
        MpsPod(f"mps-{name}-{share}", f"uid-{name}-{share}", share, name, draw(st.sampled_from(["old", "new"])), EPOCH)
        for name in (node.name for node in taken.nodes)
        for share in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]
    devices = {node.name: [device_name(uuid) for uuid in _uuids(node)] for node in taken.nodes}
    claimed = {name: draw(st.frozensets(st.sampled_from(uuids))) for name, uuids in devices.items() if uuids}
    return replace(
        taken,
        shares=shares,
        pods=tuple(pods),
        templates={name: Template("new") for name in draw(st.lists(st.sampled_from(NAMES), unique=True))},
        now=EPOCH + timedelta(seconds=seconds),
        allocated=draw(st.sampled_from([None, {name: taken for name, taken in claimed.items() if taken}])),
    )


def _delivered(share: GpuShare, by_claims: bool) -> GpuShare:
    if not by_claims:
        return share
    spec = share.spec.model_dump(by_alias=True) | {"delivery": "ResourceClaim"}
    return GpuShare.model_validate(share.model_dump(by_alias=True) | {"spec": spec})


def _uuids(node: NodeView) -> list[str]:
    return [] if node.gpu_node is None else [gpu.uuid for gpu in node.gpu_node.status.gpus]


def _later(draw: Any, before: Snapshot, other: Snapshot) -> Snapshot:
    """Some of `other`, and the rest as it was: what is not drawn is the same object."""
    nodes = {node.name: node for node in before.nodes}
    nodes |= {node.name: node for node in other.nodes if draw(st.booleans())}
    for name in list(nodes):
        if len(nodes) > 1 and not draw(st.integers(0, 5)):
            del nodes[name]
    parts = ("shares", "pods", "templates", "allocated", "nvidia_dra_nodes", "now")
    taken = {part: getattr(other, part) for part in parts if draw(st.booleans())}
    return replace(before, nodes=tuple(nodes.values()), **taken)


@given(data=st.data())
def test_a_plan_that_remembers_is_the_plan_from_nothing(make: Any, data: st.DataObject) -> None:
    memory, snapshot = FleetMemory(), data.draw(moments(make))
    for turn in range(1, 4):
        decided = plan(snapshot, memory)
        assert decided == plan(snapshot)
        if data.draw(st.booleans()):
            snapshot = replace(carried_out(snapshot, decided), pods=snapshot.pods, templates=snapshot.templates)
        snapshot = _later(data.draw, snapshot, data.draw(moments(make, 100 * turn)))


def test_facts_are_found_again_only_of_a_node_that_changed(make: Any) -> None:
    memory = FleetMemory()
    nodes = tuple(make.node(name, daemons=[make.daemon("a", 0, name)]) for name in ("n1", "n2"))
    first = FleetIndex(Snapshot((make.share(),), nodes), memory).facts
    changed = replace(nodes[1], ready=False)
    second = FleetIndex(Snapshot((make.share(),), (nodes[0], changed)), memory).facts
    assert second["n1"] is first["n1"]
    assert second["n2"] is not first["n2"]
    third = FleetIndex(Snapshot((), (nodes[0],), allocated={"n1": frozenset({"gpu-x"})}), memory).facts
    assert third.keys() == {"n1"}
    assert third["n1"] is not first["n1"]
