"""The whole decision: from a snapshot of shares and nodes to the fleet as it should be.

Guarantees: the order of objects in a snapshot does not change the plan. After a plan was carried out, the next one is
the same as long as the nodes report nothing new, except that a GPU which it freed may be given to a share.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare, GpuShareStatus
from gpushare.api.names import FINALIZER, NODE_LABEL_PREFIX
from gpushare.fleet.assign import Owners, assignments, deliverable, fleet_records, owners
from gpushare.fleet.conditions import verdicts
from gpushare.fleet.gpu_record import GpuRecord
from gpushare.fleet.model import FleetPlan, NodeView, ShareReport, Snapshot
from gpushare.fleet.pending import Pending, claim_counts, due, pending
from gpushare.fleet.rollout import Rollout, again_at, rollouts
from gpushare.fleet.share_summary import ShareSummary, counts, summaries
from gpushare.fleet.waiting import deadline, since

Planned = Mapping[str, tuple[Assignment, ...]]


def plan(snapshot: Snapshot) -> FleetPlan:
    fleet, owner_of, rolling, planned = _decide(snapshot)
    labels = _labels(snapshot, fleet, planned)
    in_use = frozenset(share for shares in labels.values() for share in shares)
    unplaced = pending(snapshot.demand, snapshot.now)
    summarized = summaries(snapshot, fleet, owner_of, planned, rolling)
    return FleetPlan(
        assignments=planned,
        labels=labels,
        daemon_sets=in_use,
        finalizers=frozenset(share.name for share in snapshot.shares if _needs_finalizer(share, snapshot)),
        released=frozenset(share.name for share in snapshot.shares if _may_go(share, in_use)),
        replaced=tuple(pod for name in sorted(rolling) for pod in rolling[name].replaced),
        again_at=min(
            (moment for moment in _moments(snapshot, planned, rolling, summarized) if moment > snapshot.now),
            default=None,
        ),
        reports=_reports(snapshot, summarized, unplaced),
        pending=tuple(unplaced),
    )


def summary_of(snapshot: Snapshot, share: str) -> ShareSummary:
    """One share's GPUs by the plan of this snapshot, which must hold the share."""
    fleet, owner_of, rolling, planned = _decide(snapshot)
    return summaries(snapshot, fleet, owner_of, planned, rolling)[share]


def _decide(snapshot: Snapshot) -> tuple[dict[str, list[GpuRecord]], Owners, Mapping[str, Rollout], Planned]:
    fleet = fleet_records(snapshot)
    owner_of = owners(snapshot, fleet)
    rolling = rollouts(snapshot, fleet, owner_of)
    return fleet, owner_of, rolling, assignments(snapshot, fleet, owner_of, rolling)


def _moments(
    snapshot: Snapshot, planned: Planned, rolling: Mapping[str, Rollout], summarized: Mapping[str, ShareSummary]
) -> Iterable[datetime]:
    """When time alone may change the plan."""
    shares = {share.name: share for share in snapshot.shares}
    yield from due(snapshot.demand)
    for rollout in rolling.values():
        yield from again_at(rollout)
    for summary in summarized.values():
        if summary.starting_until is not None:
            yield summary.starting_until
    for items in planned.values():
        for item in items:
            end = deadline(shares.get(item.share), since(item, draining=True, now=snapshot.now))
            if item.draining and end is not None:
                yield end


def _labels(snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]], planned: Planned) -> dict[str, frozenset[str]]:
    """A node carries a share's label, and so its MPS pod, until it has released the last GPU of that share."""
    existing = {share.name for share in snapshot.shares}
    result = {}
    for node in snapshot.nodes:
        shares = {assignment.share for assignment in planned.get(node.name, ())}
        shares |= {record.daemon.share for record in fleet[node.name] if record.daemon is not None}
        if not node.has_report:
            shares |= _labelled(node) & existing
        result[node.name] = frozenset(shares)
    return result


def _labelled(node: NodeView) -> set[str]:
    return {key.removeprefix(NODE_LABEL_PREFIX) for key in node.labels if key.startswith(NODE_LABEL_PREFIX)}


def _needs_finalizer(share: GpuShare, snapshot: Snapshot) -> bool:
    return not share.deleting and deliverable(share, snapshot) and FINALIZER not in share.metadata.finalizers


def _may_go(share: GpuShare, in_use: frozenset[str]) -> bool:
    return share.deleting and FINALIZER in share.metadata.finalizers and share.name not in in_use


def _reports(
    snapshot: Snapshot, summarized: Mapping[str, ShareSummary], unplaced: list[Pending]
) -> dict[str, ShareReport]:
    def counted(summary: ShareSummary) -> GpuShareStatus:
        return counts(summary, claim_counts(summary.share, snapshot.demand, unplaced))

    return {
        name: ShareReport(counts=counted(summary), verdicts=verdicts(summary)) for name, summary in summarized.items()
    }
