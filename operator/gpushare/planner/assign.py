"""Which GPU belongs to which share from now on.

Guarantees: a GPU has one owner. A share keeps what it holds (sticky) unless its own spec no longer selects it or the
node's driver is to be replaced; free GPUs go to the oldest share that selects them. A GPU leaves a share in steps: it
drains, and is unassigned once its node reports that no container holds a slot; no other share gets it before its node
has released it.
"""

from collections.abc import Collection, Mapping

from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import GpuShare
from gpushare.api.timestamps import format_timestamp
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.held_gpus import NodeGpus
from gpushare.planner.model import Snapshot
from gpushare.planner.rollout import Rollout
from gpushare.planner.selection.fleet_index import FleetIndex
from gpushare.planner.selection.node_facts import RememberedNode
from gpushare.planner.selection.refusals import GpuProfile
from gpushare.planner.selection.resource_names import ResourceNames
from gpushare.planner.waiting import deadline, since

Owners = Mapping[str, Mapping[str, str]]
"""node -> uuid -> share. Where the holders of a node are the owners, it is its facts' own mapping `holders`."""
UNOWNED: Mapping[str, str] = {}
_GIVEN = {"uuid", "share", "paused", "terminate_clients", "waiting_since"}
"""The fields that a new assignment has set, one set for all: a plan for a new share may have an assignment for each GPU
of the fleet. Made without a check, since its values were checked where they were read. Never changed.
"""


def deliverable(share: GpuShare, snapshot: Snapshot) -> bool:
    """Tells whether the cluster has what the share's delivery needs."""
    return not (share.by_claims and snapshot.no_claims)


def competing(snapshot: Snapshot) -> list[GpuShare]:
    """The shares that take GPUs, oldest first; ties by name."""
    live = [share for share in snapshot.shares if not share.deleting and deliverable(share, snapshot)]
    return sorted(live, key=lambda share: (share.metadata.creation_timestamp, share.name))


def owners(snapshot: Snapshot, index: FleetIndex, resource_names: ResourceNames) -> Owners:
    """The owners of each node's GPUs; a node without any is left out. `resource_names`: gets what this gives."""
    owner_of: dict[str, Mapping[str, str]] = {}
    free = _FreeGpus(index)
    for share in competing(snapshot):
        selected = index.selected(share).names
        held = {name: part for name, part in index.held_by.get(share.name, {}).items() if name in selected}
        takeable = free.takeable(share, selected)
        if share.whole:
            takeable = {name: gpus for name, gpus in takeable.items() if resource_names.owner(name, share) is None}
        for name in {*held, *takeable}:
            chosen = _kept_of_node(share, held.get(name), index)
            if share.spec.gpus.per_node is None:
                taken = takeable.get(name, [])
            else:
                room = share.spec.gpus.per_node - len(chosen)
                taken = sorted(takeable.get(name, []), key=lambda record: (record.index, record.uuid))[:room]
            free.take(taken)
            if taken:
                resource_names.take(name, share)
            facts = index.facts[name]
            if name not in owner_of and not taken and len(chosen) == len(facts.holders):
                owner_of[name] = facts.holders
            elif chosen or taken:
                # Another share has owned what it holds of this node, and `holders` is not to be changed.
                mine = {record.uuid: share.name for record in (*chosen, *taken)}
                owner_of[name] = {**owner_of.get(name, UNOWNED), **mine}
    return {name: _as_held(given, index.facts[name]) for name, given in owner_of.items()}


def _as_held(given: Mapping[str, str], facts: RememberedNode) -> Mapping[str, str]:
    return facts.holders if given == facts.holders else given


class _FreeGpus:
    """The GPUs that no share has yet, by profile and node: a share that may take none of a profile looks at none."""

    def __init__(self, index: FleetIndex) -> None:
        self._index = index
        self._left: dict[GpuProfile, dict[str, list[GpuRecord]]] = {}
        for name, facts in index.facts.items():
            for (profile, holder), records in facts.groups.items():
                if holder is None and profile is not None:
                    self._left.setdefault(profile, {})[name] = list(records)

    def takeable(self, share: GpuShare, selected: frozenset[str]) -> dict[str, list[GpuRecord]]:
        """What `share` may take, by node, in no order, on its `selected` nodes."""
        result: dict[str, list[GpuRecord]] = {}
        for profile, by_node in self._left.items():
            if by_node and self._index.refusal(share, profile) is None:
                for name in selected & by_node.keys():
                    result.setdefault(name, []).extend(by_node[name])
        return result

    def take(self, records: list[GpuRecord]) -> None:
        for record in records:
            profile = self._index.profile(record)
            if profile is not None:
                by_node = self._left[profile]
                by_node[record.node.name].remove(record)
                if not by_node[record.node.name]:
                    del by_node[record.node.name]


def assignments(
    snapshot: Snapshot, index: FleetIndex, owner_of: Owners, rollouts: Mapping[str, Rollout]
) -> dict[str, tuple[Assignment, ...]]:
    """What each node's spec.assignments should be. A node without a GpuNode that names GPUs is left out."""
    shares = {share.name: share for share in snapshot.shares}
    rolling = frozenset[str]().union(*(rollout.nodes for rollout in rollouts.values()))
    result = {}
    for name, facts in index.facts.items():
        given = owner_of.get(name, UNOWNED)
        if not facts.records:
            continue
        if facts.settled is not None and name not in rolling and stays(facts, given):
            result[name] = facts.settled
            continue
        desired: list[Assignment | None] = []
        for record in facts.records:
            owner = given.get(record.uuid)
            if owner is not None:
                desired.append(_kept(record, owner, rollouts.get(owner, Rollout())))
            else:
                desired.append(_leaving(record, shares.get(record.holder or ""), snapshot))
        result[name] = tuple(sorted((item for item in desired if item is not None), key=lambda item: item.uuid))
    return result


def stays(facts: RememberedNode, given: Mapping[str, str]) -> bool:
    """Tells whether the shares that hold the node's GPUs own them, and no others."""
    return given is facts.holders or (not given and not facts.holders)


def _kept_of_node(share: GpuShare, held: NodeGpus | None, index: FleetIndex) -> Collection[GpuRecord]:
    """The GPUs of one node that `share` holds and keeps, up to perNode."""
    if held is None:
        return ()
    most, kinds = share.spec.gpus.per_node, index.facts[held.node.name].held_kinds[share.name]
    if (most is None or len(held.records) <= most) and all(
        kind is not None and index.refusal(share, kind, giving_up=True) is None for kind in kinds
    ):
        return held.records
    mine = [record for record in held.records if _still_selected(share, record, index)]
    return sorted(mine, key=_keep_first)[:most]


def _keep_first(record: GpuRecord) -> tuple[bool, bool, int, str]:
    """A share that shrinks gives up draining GPUs first, then those without a holder, then the highest index."""
    return record.draining, not (record.slots or record.claimed), record.index, record.uuid


def _still_selected(share: GpuShare, record: GpuRecord, index: FleetIndex) -> bool:
    profile = index.profile(record)
    if profile is None:
        return not _is_gone(record)
    return index.refusal(share, profile, giving_up=True) is None


def _is_gone(record: GpuRecord) -> bool:
    """A GPU that its node no longer has, as after a card was replaced, and that nothing of the share runs on. Its agent
    reports a daemon for as long as the GPU is assigned, so a daemon that is not ready says nothing.
    """
    if record.slots or record.claimed or not record.node.has_report:
        return False
    if record.daemon is None:
        return True
    node = record.node.gpu_node
    return node is not None and node.lists_every_gpu and not record.daemon.ready


def _kept(record: GpuRecord, owner: str, rollout: Rollout) -> Assignment:
    node = record.node.name
    begun = rollout.waiting.get(node)
    paused, expired = node in rollout.paused, node in rollout.expired
    begun_at = None if begun is None else format_timestamp(begun)
    if record.assignment is not None and _says(record.assignment) == (owner, False, paused, expired, begun_at):
        return record.assignment  # most of a fleet stays as it is, and a new one costs as much as all else here
    return Assignment.model_construct(
        _GIVEN, uuid=record.uuid, share=owner, paused=paused, terminate_clients=expired, waiting_since=begun_at
    )


def _says(assignment: Assignment) -> tuple[str, bool, bool, bool, str | None]:
    return (
        assignment.share,
        assignment.draining,
        assignment.paused,
        assignment.terminate_clients,
        assignment.waiting_since,
    )


def _leaving(record: GpuRecord, holder: GpuShare | None, snapshot: Snapshot) -> Assignment | None:
    if record.holder is None or _may_leave(record):
        return None
    begun = since(record.assignment, draining=True, now=snapshot.now, jumps=snapshot.jumps)
    end = deadline(holder, begun)
    return Assignment(
        uuid=record.uuid,
        share=record.holder,
        draining=True,
        terminate_clients=bool(record.slots) and end is not None and end <= snapshot.now,
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
