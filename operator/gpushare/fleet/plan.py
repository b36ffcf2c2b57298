"""The whole decision: from a snapshot of shares and nodes to how the fleet should be.

Guarantees: the same snapshot gives the same plan in whatever order it lists things; a plan that was carried out is
planned again unchanged as long as the nodes tell nothing new.
"""

from collections.abc import Mapping

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import Delivery, GpuShare
from gpushare.api.names import FINALIZER, NODE_LABEL_PREFIX
from gpushare.fleet.assign import Owners, assignments, fleet_places, owners
from gpushare.fleet.conditions import verdicts
from gpushare.fleet.model import NodeView, Plan, ShareReport, Snapshot
from gpushare.fleet.place import Place
from gpushare.fleet.standing import counts, standings

Planned = Mapping[str, tuple[Assignment, ...]]


def plan(snapshot: Snapshot) -> Plan:
    fleet = fleet_places(snapshot)
    given = owners(snapshot, fleet)
    planned = assignments(fleet, given)
    labels = _labels(snapshot, fleet, planned)
    in_use = frozenset(share for shares in labels.values() for share in shares)
    return Plan(
        assignments=planned,
        labels=labels,
        daemon_sets=in_use,
        finalizers=frozenset(share.name for share in snapshot.shares if _needs_finalizer(share)),
        released=frozenset(share.name for share in snapshot.shares if _may_go(share, in_use)),
        reports=_reports(snapshot, fleet, given, planned),
    )


def _labels(snapshot: Snapshot, fleet: Mapping[str, list[Place]], planned: Planned) -> dict[str, frozenset[str]]:
    """A node carries a share's label, and so its MPS pod, until it has let go of the last GPU of that share."""
    existing = {share.name for share in snapshot.shares}
    result = {}
    for node in snapshot.nodes:
        shares = {assignment.share for assignment in planned.get(node.name, ())}
        shares |= {place.daemon.share for place in fleet[node.name] if place.daemon is not None}
        if not node.has_news:
            shares |= _labelled(node) & existing
        result[node.name] = frozenset(shares)
    return result


def _labelled(node: NodeView) -> set[str]:
    return {key.removeprefix(NODE_LABEL_PREFIX) for key in node.labels if key.startswith(NODE_LABEL_PREFIX)}


def _needs_finalizer(share: GpuShare) -> bool:
    return (
        not share.deleting
        and share.spec.delivery is Delivery.DEVICE_PLUGIN
        and FINALIZER not in share.metadata.finalizers
    )


def _may_go(share: GpuShare, in_use: frozenset[str]) -> bool:
    return share.deleting and FINALIZER in share.metadata.finalizers and share.name not in in_use


def _reports(
    snapshot: Snapshot, fleet: Mapping[str, list[Place]], given: Owners, planned: Planned
) -> dict[str, ShareReport]:
    return {
        name: ShareReport(counts=counts(standing), verdicts=verdicts(standing))
        for name, standing in standings(snapshot, fleet, given, planned).items()
    }
