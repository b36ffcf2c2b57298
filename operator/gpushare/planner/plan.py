"""The whole decision: from a snapshot of shares and nodes to the fleet as it should be.

Guarantees: the order of objects in a snapshot does not change the plan. After a plan was carried out, the next one is
the same as long as the nodes report nothing new, except that a GPU which it freed may be given to a share.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare, GpuShareStatus
from gpushare.api.names import FINALIZER, NODE_LABEL_PREFIX
from gpushare.planner import driver_upgrade
from gpushare.planner.assign import Owners, assignments, deliverable, owners
from gpushare.planner.model import FleetPlan, NodeView, ShareReport, Snapshot
from gpushare.planner.pending import Pending, claim_counts, due, pending
from gpushare.planner.rollout import Rollout, again_at, rollouts
from gpushare.planner.selection.fleet_index import FleetIndex
from gpushare.planner.selection.node_facts import FleetMemory
from gpushare.planner.selection.resource_names import ResourceNames
from gpushare.planner.startup import waits_for
from gpushare.planner.status.conditions import verdicts
from gpushare.planner.status.share_summary import ShareSummary, counts, summaries
from gpushare.planner.waiting import deadline, since

Planned = Mapping[str, tuple[Assignment, ...]]


def plan(snapshot: Snapshot, memory: FleetMemory | None = None) -> FleetPlan:
    """`memory`: of the plan before, so that only nodes that changed since are looked at again; the plan is the same."""
    index, owner_of, rolling, planned, resource_names = _decide(snapshot, memory)
    labels = _labels(snapshot, index, planned)
    in_use = frozenset[str]().union(*labels.values())
    unplaced = pending(snapshot.demand, snapshot.now)
    summarized = summaries(snapshot, index, owner_of, planned, rolling, resource_names)
    whole = frozenset(share.name for share in snapshot.shares if share.whole)
    return FleetPlan(
        assignments=planned,
        labels=labels,
        daemon_sets=in_use - whole,
        finalizers=frozenset(share.name for share in snapshot.shares if _needs_finalizer(share, snapshot)),
        released=frozenset(share.name for share in snapshot.shares if _may_go(share, in_use)),
        replaced=tuple(pod for name in sorted(rolling) for pod in rolling[name].replaced),
        started=_started(snapshot, planned),
        without_agent=_without_agent(snapshot, labels),
        again_at=min(
            (moment for moment in _moments(snapshot, index, planned, rolling, summarized) if moment > snapshot.now),
            default=None,
        ),
        reports=_reports(snapshot, summarized, unplaced),
        pending=tuple(unplaced),
    )


def summary_of(snapshot: Snapshot, share: str) -> ShareSummary:
    """One share's GPUs by the plan of this snapshot, which must hold the share."""
    index, owner_of, rolling, planned, resource_names = _decide(snapshot)
    return summaries(snapshot, index, owner_of, planned, rolling, resource_names)[share]


def _decide(
    snapshot: Snapshot, memory: FleetMemory | None = None
) -> tuple[FleetIndex, Owners, Mapping[str, Rollout], Planned, ResourceNames]:
    index = FleetIndex(snapshot, memory)
    resource_names = ResourceNames(index.facts, snapshot.shares)
    owner_of = owners(snapshot, index, resource_names)
    rolling = rollouts(snapshot, index.facts, owner_of)
    return index, owner_of, rolling, assignments(snapshot, index, owner_of, rolling), resource_names


def _moments(
    snapshot: Snapshot,
    index: FleetIndex,
    planned: Planned,
    rolling: Mapping[str, Rollout],
    summarized: Mapping[str, ShareSummary],
) -> Iterable[datetime]:
    """When time alone may change the plan."""
    shares = {share.name: share for share in snapshot.shares}
    yield from due(snapshot.demand)
    for rollout in rolling.values():
        yield from again_at(rollout)
    for summary in summarized.values():
        yield from (moment for moment in (summary.starting_until, summary.changing_until) if moment is not None)
    for name, items in planned.items():
        if items is index.facts[name].settled:
            continue
        for item in items:
            end = deadline(shares.get(item.share), since(item, draining=True, now=snapshot.now, jumps={}))
            if item.draining and end is not None:
                yield end


def _labels(snapshot: Snapshot, index: FleetIndex, planned: Planned) -> dict[str, frozenset[str]]:
    """A node carries a share's label, and so its MPS pod, until it has released the last GPU of that share."""
    existing = {share.name for share in snapshot.shares}
    result = {}
    for name, facts in index.facts.items():
        items = planned.get(name, ())
        if items and items is facts.settled and facts.node.has_report:
            result[name] = facts.holding
            continue
        shares = {assignment.share for assignment in items} | facts.daemons
        if not facts.node.has_report:
            shares |= _labelled(facts.node) & existing
        result[name] = frozenset(shares)
    return result


def _started(snapshot: Snapshot, planned: Planned) -> frozenset[str]:
    starting = [node for node in snapshot.nodes if node.starting]
    resources = {share.name: share.resource for share in snapshot.shares if not share.by_claims} if starting else {}
    return frozenset(node.name for node in starting if not waits_for(node, planned.get(node.name, ()), resources))


def _without_agent(snapshot: Snapshot, labels: Mapping[str, frozenset[str]]) -> frozenset[str]:
    leaving = [node for node in snapshot.nodes if driver_upgrade.leaving(node.labels)]
    with_daemons = {pod.node for pod in snapshot.pods} if leaving else set()
    return frozenset(node.name for node in leaving if not labels.get(node.name) and not _has_shares(node, with_daemons))


def _has_shares(node: NodeView, with_daemons: set[str]) -> bool:
    """Tells whether something of a share is there still, though no share is to have anything."""
    return node.name in with_daemons or bool(_labelled(node))


def _labelled(node: NodeView) -> set[str]:
    return {key.removeprefix(NODE_LABEL_PREFIX) for key in node.labels if key.startswith(NODE_LABEL_PREFIX)}


def _needs_finalizer(share: GpuShare, snapshot: Snapshot) -> bool:
    return not share.deleting and deliverable(share, snapshot) and FINALIZER not in share.metadata.finalizers


def _may_go(share: GpuShare, in_use: frozenset[str]) -> bool:
    return share.deleting and FINALIZER in share.metadata.finalizers and share.name not in in_use


def _reports(
    snapshot: Snapshot, summarized: Mapping[str, ShareSummary], unplaced: list[Pending]
) -> dict[str, ShareReport]:
    waiting: dict[str, list[Pending]] = {}
    for item in unplaced:
        waiting.setdefault(item.claim.share, []).append(item)

    def counted(summary: ShareSummary) -> GpuShareStatus:
        name = summary.share.name
        claims = claim_counts(summary.share, snapshot.demand, waiting.get(name, []))
        return counts(summary, claims)

    return {
        name: ShareReport(counts=counted(summary), verdicts=verdicts(summary)) for name, summary in summarized.items()
    }
