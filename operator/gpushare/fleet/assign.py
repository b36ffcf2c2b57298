"""Which GPU belongs to which share from now on.

Guarantees: a GPU has one owner. A share keeps what it holds (sticky) unless its own spec no longer selects it; free
GPUs go to the oldest share that selects them. A GPU leaves a share in steps: it drains, and is unassigned once its node
reports that no container holds a slot; no other share gets it before its node has released it.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.names import device_name
from gpushare.api.timestamps import format_timestamp
from gpushare.fleet.gpu_record import GpuRecord, gpu_records
from gpushare.fleet.model import NodeView, Snapshot
from gpushare.fleet.refusals import SPEC_RULES, Candidate, first_refusal
from gpushare.fleet.rollout import Rollout
from gpushare.fleet.waiting import deadline, since

Owners = Mapping[tuple[str, str], str]
"""(node, uuid) -> share."""


def deliverable(share: GpuShare, snapshot: Snapshot) -> bool:
    """Whether the cluster has what the share's delivery needs."""
    return not (share.by_claims and snapshot.no_claims)


def competing(snapshot: Snapshot) -> list[GpuShare]:
    """The shares that take GPUs, oldest first; ties by name."""
    live = [share for share in snapshot.shares if not share.deleting and deliverable(share, snapshot)]
    return sorted(live, key=lambda share: (share.metadata.creation_timestamp, share.name))


def selects(share: GpuShare, node: NodeView) -> bool:
    return share.spec.node_selector.matches(dict(node.labels))


def owners(snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]]) -> Owners:
    """The owner of each GPU that has one; `fleet` holds the records of each node."""
    owner_of: dict[tuple[str, str], str] = {}
    for share in competing(snapshot):
        for node in snapshot.nodes:
            if not selects(share, node):
                continue
            for record in _choose(share, fleet[node.name], owner_of, node.name in snapshot.nvidia_dra_nodes):
                owner_of[record.key] = share.name
    return owner_of


def assignments(
    snapshot: Snapshot, fleet: Mapping[str, list[GpuRecord]], owner_of: Owners, rollouts: Mapping[str, Rollout]
) -> dict[str, tuple[Assignment, ...]]:
    """What each node's spec.assignments should be. A node without a GpuNode that names GPUs is left out."""
    shares = {share.name: share for share in snapshot.shares}
    result = {}
    for name, found in fleet.items():
        desired: list[Assignment | None] = []
        for record in found:
            owner = owner_of.get(record.key)
            if owner is not None:
                desired.append(_kept(record, owner, rollouts.get(owner, Rollout())))
            else:
                desired.append(_leaving(record, shares.get(record.holder or ""), snapshot.now))
        kept = sorted((item for item in desired if item is not None), key=lambda item: item.uuid)
        if found:
            result[name] = tuple(kept)
    return result


def fleet_records(snapshot: Snapshot) -> dict[str, list[GpuRecord]]:
    by_claims = {share.name for share in snapshot.shares if share.by_claims}

    def claimed(node: str, uuid: str, holder: str | None) -> bool:
        if snapshot.allocated is None:
            return holder in by_claims
        return bool(snapshot.allocated) and (node, device_name(uuid)) in snapshot.allocated

    return {
        node.name: gpu_records(node, partial(claimed, node.name))
        for node in sorted(snapshot.nodes, key=lambda node: node.name)
    }


def _choose(share: GpuShare, found: list[GpuRecord], owner_of: Owners, nvidia_dra: bool) -> list[GpuRecord]:
    """The GPUs of one node that `share` gets: what it holds first, then free ones by index, up to perNode."""
    mine = [record for record in found if record.holder == share.name and _still_selected(share, record)]
    chosen = sorted(mine, key=_keep_first)[: share.spec.gpus.per_node]
    for record in found:
        if record.holder is None and record.gpu is not None:
            candidate = Candidate(share, record.node, record.gpu, owner_of.get(record.key), nvidia_dra, len(chosen))
            if first_refusal(candidate) is None:
                chosen.append(record)
    return chosen


def _keep_first(record: GpuRecord) -> tuple[bool, bool, int, str]:
    """A share that shrinks gives up draining GPUs first, then those without a holder, then the highest index."""
    return record.draining, not (record.slots or record.claimed), record.index, record.uuid


def _still_selected(share: GpuShare, record: GpuRecord) -> bool:
    if record.gpu is None:
        return not record.node.has_report or record.daemon is not None or bool(record.slots)
    candidate = Candidate(share, record.node, record.gpu, share.name, False, 0)
    return first_refusal(candidate, SPEC_RULES) is None


def _kept(record: GpuRecord, owner: str, rollout: Rollout) -> Assignment:
    node = record.node.name
    begun = rollout.waiting.get(node)
    return Assignment(
        uuid=record.uuid,
        share=owner,
        paused=node in rollout.paused,
        terminate_clients=node in rollout.expired,
        waiting_since=None if begun is None else format_timestamp(begun),
    )


def _leaving(record: GpuRecord, holder: GpuShare | None, now: datetime) -> Assignment | None:
    if record.holder is None or _may_leave(record):
        return None
    begun = since(record.assignment, draining=True, now=now)
    end = deadline(holder, begun)
    return Assignment(
        uuid=record.uuid,
        share=record.holder,
        draining=True,
        terminate_clients=bool(record.slots) and end is not None and end <= now,
        waiting_since=format_timestamp(begun),
    )


def _may_leave(record: GpuRecord) -> bool:
    """The node reports that no container can hold a slot any more, or the GPU has left its share already.

    Its agent goes on from there by itself: it stops the MPS daemon once no container can hold a slot, and says
    `drained` of an assigned GPU alone.
    """
    if record.slots or record.claimed:
        return False
    if record.unassigned:
        return True
    if record.daemon is not None:
        return record.daemon.drained
    return record.assignment is None or (record.assignment.draining and record.node.observed)
