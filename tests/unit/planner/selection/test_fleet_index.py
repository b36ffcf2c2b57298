"""A plan finds what it asks often once: it must be the plan that asks each rule about each GPU, share by share."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.conditions import GpuReason
from gpushare.api.gpunode import Holder
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import LabelSelector
from gpushare.planner import NodeView, ShareReport, Snapshot, plan
from gpushare.planner.assign import Owners, competing, owners
from gpushare.planner.gpu_record import GpuRecord, moves_counts_alone
from gpushare.planner.plan import summary_of
from gpushare.planner.selection.fleet_index import FleetIndex, fleet_records
from gpushare.planner.selection.nodes import NodeIndex
from gpushare.planner.selection.refusals import (
    CHAIN,
    FACTS,
    GIVE_UP_RULES,
    Candidate,
    FoundGpu,
    Refusal,
    first_refusal,
    per_node_reached,
    profile_of,
)
from gpushare.planner.selection.resource_names import ResourceNames
from tests.unit.planner.test_fleet_rules import carried_out, fleets

SELECTORS = (
    {},
    {"matchLabels": {"pool": "gpu"}},
    {"matchLabels": {"pool": "gpu", "zone": "a"}},
    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
    {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]},
    {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}], "matchLabels": {"pool": "gpu"}},
)


@st.composite
def varied(draw: st.DrawFn, make: Any) -> Snapshot:
    """Shares that overlap in part, and GPUs that differ in all that rules look at."""
    snapshot = draw(fleets(make))
    shares = [_varied_share(draw, share) for share in snapshot.shares]
    nodes = [_varied_node(draw, node) for node in snapshot.nodes]
    return replace(snapshot, shares=tuple(shares), nodes=tuple(nodes))


def _varied_share(draw: st.DrawFn, share: GpuShare) -> GpuShare:
    spec = share.spec.model_dump(by_alias=True)
    spec["nodeSelector"] = draw(st.sampled_from(SELECTORS))
    spec["gpus"]["products"] = draw(st.sampled_from([[], ["NVIDIA H200"], ["NVIDIA L4", "NVIDIA H200"]]))
    spec["clients"]["perGpu"] = draw(st.sampled_from([2, 8, 40]))
    return GpuShare.model_validate(share.model_dump(by_alias=True) | {"spec": spec})


def _varied_node(draw: st.DrawFn, node: NodeView) -> NodeView:
    assert node.gpu_node is not None
    gpus = [
        gpu.model_copy(
            update={
                "product": draw(st.sampled_from(["NVIDIA H200", "NVIDIA L4"])),
                "memory_mib": draw(st.sampled_from([23034, 143155])),
                "mig_enabled": draw(st.integers(0, 5)) == 0,
            }
        )
        for gpu in node.gpu_node.status.gpus
    ]
    status = node.gpu_node.status.model_copy(update={"gpus": gpus, "client_ceiling": draw(st.sampled_from([16, 48]))})
    labels = dict(node.labels) | draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]))
    return replace(node, labels=labels, gpu_node=node.gpu_node.model_copy(update={"status": status}))


def plain_owners(snapshot: Snapshot) -> Owners:
    """Each share, oldest first, asks every rule about every GPU of every node."""
    owner_of: dict[str, dict[str, str]] = {}
    for share in competing(snapshot):
        for name, records in fleet_records(snapshot).items():
            node = next(node for node in snapshot.nodes if node.name == name)
            if share.spec.node_selector.matches(node.labels):
                for record in _plain_choice(share, records, owner_of.get(name, {}), name in snapshot.nvidia_dra_nodes):
                    owner_of.setdefault(name, {})[record.uuid] = share.name
    return owner_of


def _plain_choice(share: GpuShare, records: list[GpuRecord], given_of: Mapping[str, str], dra: bool) -> list[GpuRecord]:
    def stays(record: GpuRecord) -> bool:
        if record.gpu is None:
            node = record.node.gpu_node
            serves = record.daemon is not None and (record.daemon.ready or not (node and node.lists_every_gpu))
            return not record.node.has_report or serves or record.claimed or bool(record.slots)
        return first_refusal(Candidate(record.node, record.gpu, False, share, share.name), GIVE_UP_RULES) is None

    mine = [record for record in records if record.holder == share.name and stays(record)]
    mine.sort(key=lambda record: (record.draining, not (record.slots or record.claimed), record.index, record.uuid))
    chosen = mine[: share.spec.gpus.per_node]
    for record in records:
        if record.holder is None and record.gpu is not None:
            holder = given_of.get(record.uuid)
            if first_refusal(Candidate(record.node, record.gpu, dra, share, holder, len(chosen))) is None:
                chosen.append(record)
    return chosen


def plain_refusals(snapshot: Snapshot, share: GpuShare, owner_of: Owners) -> tuple[int, list[Refusal], Counter[str]]:
    """GPUs that match, why the share does not have some of them, and how many there are of other products."""
    matching, refused, mismatched = 0, list[Refusal](), Counter[str]()
    for name, records in fleet_records(snapshot).items():
        node = next(node for node in snapshot.nodes if node.name == name)
        if share.deleting or not share.spec.node_selector.matches(node.labels):
            continue
        given_of = owner_of.get(name, {})
        taken = sum(given_of.get(record.uuid) == share.name for record in records)
        for record in records:
            if given_of.get(record.uuid) == share.name:
                matching += 1
            elif record.gpu is not None:
                owner = given_of.get(record.uuid)
                holder, leaves, dra = owner or record.holder, owner is None, name in snapshot.nvidia_dra_nodes
                candidate = Candidate(node, record.gpu, dra, share, holder, taken, leaves)
                rules = (
                    (*GIVE_UP_RULES, (GpuReason.PER_NODE_REACHED, per_node_reached)) if holder == share.name else CHAIN
                )
                refusal = first_refusal(candidate, rules)
                if refusal is not None and refusal.reason is GpuReason.PRODUCT_MISMATCH:
                    mismatched[record.gpu.product] += 1
                elif refusal is not None:
                    matching += 1
                    refused.append(refusal)
    return matching, refused, mismatched


@given(data=st.data())
def test_owners_and_refusals_are_those_of_every_rule_asked_about_every_gpu(make: Any, data: st.DataObject) -> None:
    snapshot = data.draw(varied(make))
    expected = plain_owners(snapshot)
    index = FleetIndex(snapshot)
    assert owners(snapshot, index, ResourceNames(index.facts, snapshot.shares)) == expected
    for share in snapshot.shares:
        summary = summary_of(snapshot, share.name)
        counted = summary.matching, summary.refused, summary.mismatched
        assert counted == plain_refusals(snapshot, share, expected)
        for reason, group in summary.refused_gpus.items():
            messages = [refusal.message for refusal in summary.refused if refusal.reason is reason]
            assert (group.count, group.message) == (len(messages), messages[0])


@given(data=st.data())
def test_a_selector_matches_by_the_index_what_it_matches_node_by_node(make: Any, data: st.DataObject) -> None:
    snapshot = data.draw(varied(make))
    index = NodeIndex(snapshot.nodes)
    for text in SELECTORS:
        selector = LabelSelector.model_validate(text)
        expected = {node.name for node in snapshot.nodes if selector.matches(node.labels)}
        assert {node.name for node in index.matching(selector)} == expected


def test_a_rule_is_a_fact_a_rule_of_the_spec_or_one_of_the_plan() -> None:
    """Who adds a rule to the chain alone would have it ignored wherever a profile is asked."""
    of_the_plan = {GpuReason.HELD_BY_SHARE, GpuReason.PER_NODE_REACHED}
    assert {*dict(FACTS), *dict(GIVE_UP_RULES), *of_the_plan} == set(dict(CHAIN))
    assert [pair for pair in CHAIN if pair in FACTS] == list(FACTS)


def test_gpus_of_one_profile_are_alike_for_every_rule(make: Any) -> None:
    node = make.node(gpus=[make.gpu(0), make.gpu(1, numa_node=1), make.gpu(2, memory_mib=1), make.gpu(3, lost=True)])
    profiles = [profile_of(FoundGpu(node, gpu, False)) for gpu in node.gpu_node.status.gpus]
    assert profiles[0] == profiles[1]
    assert len(set(profiles)) == 3


@given(data=st.data())
def test_a_change_of_counts_alone_changes_only_the_slots_in_use(make: Any, data: st.DataObject) -> None:
    drawn = data.draw(fleets(make))
    snapshot = carried_out(drawn, plan(drawn))
    nodes = []
    for node in snapshot.nodes:
        assert node.gpu_node is not None
        holders = [
            Holder(uuid=daemon.uuid, share=daemon.share, slots=data.draw(st.lists(st.integers(0, 3), unique=True)))
            for daemon in node.gpu_node.status.daemons
        ]
        after = node.gpu_node.model_copy(
            update={"status": node.gpu_node.status.model_copy(update={"holders": holders})}
        )
        nodes.append(replace(node, gpu_node=after if moves_counts_alone(node.gpu_node, after) else node.gpu_node))
    before, other = plan(snapshot), plan(replace(snapshot, nodes=tuple(nodes)))
    for share in snapshot.shares:
        assert _but_for_slots_used(before.reports.get(share.name)) == _but_for_slots_used(other.reports.get(share.name))
    assert (before.labels, before.daemon_sets, before.released) == (other.labels, other.daemon_sets, other.released)


def _but_for_slots_used(report: ShareReport | None) -> ShareReport | None:
    if report is None:
        return None
    slots = report.counts.slots.model_copy(update={"used": 0})
    return replace(report, counts=report.counts.model_copy(update={"slots": slots}))
