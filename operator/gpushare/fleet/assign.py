"""Which GPU belongs to which share from now on.

Guarantees: a GPU has one owner. A share keeps what it holds (sticky) unless its own spec no longer wants it; free GPUs
go to the oldest share that wants them. A GPU leaves a share in steps: draining, then, once its node tells that no
container holds a slot, unassigned; nobody else gets it before its node has let go of it.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import device_name
from gpushare.api.timestamps import format_timestamp
from gpushare.fleet.gpu_record import GpuRecord, places
from gpushare.fleet.model import NodeView, Snapshot
from gpushare.fleet.refusals import WISH, Candidate, first_refusal
from gpushare.fleet.rollout import Rollout
from gpushare.fleet.waiting import deadline, since

Owners = Mapping[tuple[str, str], str]
"""(node, uuid) -> share."""


def deliverable(share: GpuShare, snapshot: Snapshot) -> bool:
    """Whether the cluster has what the share's delivery needs."""
    return not (share.by_claims and snapshot.no_claims)


def wanting(snapshot: Snapshot) -> list[GpuShare]:
    """The shares that take GPUs, oldest first; ties by name."""
    live = [share for share in snapshot.shares if not share.deleting and deliverable(share, snapshot)]
    return sorted(live, key=lambda share: (share.metadata.creation_timestamp, share.name))


def selects(share: GpuShare, node: NodeView) -> bool:
    return share.spec.node_selector.matches(dict(node.labels))


def owners(snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]]) -> Owners:
    """The owner of each GPU that has one; `fleet` holds the places of each node."""
    given: dict[tuple[str, str], str] = {}
    for share in wanting(snapshot):
        for node in snapshot.nodes:
            if not selects(share, node):
                continue
            for place in _choose(share, fleet[node.name], given, node.name in snapshot.nvidia_dra_nodes):
                given[place.key] = share.name
    return given


def assignments(
    snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]], given: Owners, rollouts: Mapping[str, Rollout]
) -> dict[str, tuple[Assignment, ...]]:
    """What each node's spec.assignments should be. A node of which nothing is known is left out."""
    shares = {share.name: share for share in snapshot.shares}
    result = {}
    for name, found in fleet.items():
        wanted: list[Assignment | None] = []
        for place in found:
            owner = given.get(place.key)
            if owner is not None:
                wanted.append(_kept(place, owner, rollouts.get(owner, Rollout())))
            else:
                wanted.append(_leaving(place, shares.get(place.holder or ""), snapshot.now))
        kept = sorted((item for item in wanted if item is not None), key=lambda item: item.uuid)
        if found:
            result[name] = tuple(kept)
    return result


def fleet_places(snapshot: Snapshot) -> dict[str, list[GpuRecord]]:
    by_claims = {share.name for share in snapshot.shares if share.by_claims}

    def claimed(node: str, uuid: str, holder: str | None) -> bool:
        if snapshot.allocated is None:
            return holder in by_claims
        return (node, device_name(uuid)) in snapshot.allocated

    return {
        node.name: places(node, partial(claimed, node.name))
        for node in sorted(snapshot.nodes, key=lambda node: node.name)
    }


def _choose(share: GpuShare, found: list[GpuRecord], given: Owners, nvidia_dra: bool) -> list[GpuRecord]:
    """The GPUs of one node that `share` gets: what it holds first, then free ones by index, up to perNode."""
    mine = [place for place in found if place.holder == share.name and _still_wanted(share, place)]
    chosen = sorted(mine, key=_keep_first)[: share.spec.gpus.per_node]
    for place in found:
        if place.holder is None and place.gpu is not None:
            candidate = Candidate(share, place.node, place.gpu, given.get(place.key), nvidia_dra, len(chosen))
            if first_refusal(candidate) is None:
                chosen.append(place)
    return chosen


def _keep_first(place: GpuRecord) -> tuple[bool, bool, int, str]:
    """Shrinking gives up what is on its way out already, then what nobody holds, then the highest index."""
    return place.draining, not (place.slots or place.claimed), place.index, place.uuid


def _still_wanted(share: GpuShare, place: GpuRecord) -> bool:
    if place.gpu is None:
        return not place.node.has_news or place.daemon is not None or bool(place.slots)
    candidate = Candidate(share, place.node, place.gpu, share.name, False, 0)
    return first_refusal(candidate, WISH) is None


def _kept(place: GpuRecord, owner: str, rollout: Rollout) -> Assignment:
    node = place.node.name
    begun = rollout.waiting.get(node)
    return Assignment(
        uuid=place.uuid,
        share=owner,
        paused=node in rollout.paused,
        end_clients=node in rollout.expired,
        waiting_since=None if begun is None else format_timestamp(begun),
    )


def _leaving(place: GpuRecord, holder: GpuShare | None, now: datetime) -> Assignment | None:
    if place.holder is None or _may_leave(place):
        return None
    begun = since(place.assignment, draining=True, now=now)
    end = deadline(holder, begun)
    return Assignment(
        uuid=place.uuid,
        share=place.holder,
        draining=True,
        end_clients=bool(place.slots) and end is not None and end <= now,
        waiting_since=format_timestamp(begun),
    )


def _may_leave(place: GpuRecord) -> bool:
    """No container can hold a slot any more, as the node itself tells."""
    if place.slots or place.claimed:
        return False
    if place.daemon is not None:
        return place.daemon.drained
    return place.assignment is None or (place.assignment.draining and place.node.observed)
