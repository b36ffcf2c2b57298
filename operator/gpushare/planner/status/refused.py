"""The GPUs that a share cannot have, by reason. Pure.

Guarantee: what is the same for many GPUs is decided once. Shares with equal selectors have the same groups of GPUs, and
of a group all are refused for one reason; a sentence about one of them is made when it is read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpushare.api.conditions import GpuReason
from gpushare.api.gpushare import GpuShare
from gpushare.planner.assign import UNOWNED, Owners, stays
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.selection.fleet_index import FleetIndex, Selection
from gpushare.planner.selection.refusals import CHAIN, Candidate, GpuProfile, Refusal, resource_name_taken
from gpushare.planner.selection.resource_names import ResourceNames

RULE_OF = {**dict(CHAIN), GpuReason.RESOURCE_NAME_TAKEN: resource_name_taken}


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of one profile and one holder, by node and index. `owned`: by this plan; else the holder gives them back.

    `profile`: None of GPUs that their agents do not list.
    """

    profile: GpuProfile | None
    holder: str | None
    owned: bool
    records: list[GpuRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RefusedGpus:
    reason: GpuReason
    share: GpuShare
    groups: list[GpuGroup] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(group.records) for group in self.groups)

    @property
    def message(self) -> str:
        """About the first of them, by node and index; of what other shares hold, one that is being given back."""
        waits = self.reason is GpuReason.HELD_BY_SHARE
        group = min(self.groups, key=lambda group: (waits and group.owned, place(group.records[0])))
        return self._message(group.records[0], group)

    def each(self) -> Iterable[tuple[GpuRecord, Refusal]]:
        for group in self.groups:
            for record in group.records:
                yield record, Refusal(self.reason, self._message(record, group))

    def _message(self, record: GpuRecord, group: GpuGroup) -> str:
        """The message of the one rule that refuses it, so what other rules would look at does not matter."""
        if record.gpu is None:
            return ""
        taken = self.share.spec.gpus.per_node or 0
        leaves = group.holder is not None and not group.owned
        candidate = Candidate(record.node, record.gpu, True, self.share, group.holder, taken, leaves)
        return RULE_OF[self.reason](candidate) or ""


def place(record: GpuRecord) -> tuple[str, int, str]:
    return record.node.name, record.index, record.uuid


def selected_gpus(selection: Selection, index: FleetIndex, owner_of: Owners) -> tuple[GpuGroup, ...]:
    """The GPUs of the nodes of one selector that report."""
    groups: dict[tuple[GpuProfile | None, str | None, bool], GpuGroup] = {}

    def add(profile: GpuProfile | None, holder: str | None, owned: bool, records: Iterable[GpuRecord]) -> None:
        key = profile, holder, owned
        group = groups.get(key)
        if group is None:
            group = groups[key] = GpuGroup(*key)
        group.records.extend(records)

    for node in selection.nodes:
        facts, given = index.facts[node.name], owner_of.get(node.name, UNOWNED)
        if stays(facts, given):
            for (profile, holder), records in facts.groups.items():
                add(profile, holder, holder is not None, records)
            continue
        for record in facts.records:
            owner = given.get(record.uuid)
            add(facts.profiles[record.uuid], owner or record.holder, owner is not None, (record,))
    return tuple(groups.values())


def judged(
    share: GpuShare, groups: Iterable[GpuGroup], index: FleetIndex, resource_names: ResourceNames
) -> Iterator[tuple[GpuGroup, GpuReason | None]]:
    """Each group, or parts of it, with the reason why `share` does not have its GPUs (`reason_of`)."""
    for group in groups:
        reason = reason_of(share, group, index)
        if share.whole and reason is GpuReason.PER_NODE_REACHED and group.holder is None:
            yield from _by_name(share, group, resource_names)
        else:
            yield group, reason


def _by_name(
    share: GpuShare, group: GpuGroup, resource_names: ResourceNames
) -> Iterator[tuple[GpuGroup, GpuReason | None]]:
    """Free GPUs that nothing else keeps from a share of whole ones: by who has its resource name on their nodes."""
    parts: dict[str | None, GpuGroup] = {}
    for record in group.records:
        owner = resource_names.owner(record.node.name, share)
        part = parts.setdefault(owner, GpuGroup(group.profile, owner or None, group.owned))
        part.records.append(record)
    for owner, part in parts.items():
        yield part, GpuReason.PER_NODE_REACHED if owner is None else GpuReason.RESOURCE_NAME_TAKEN


def reason_of(share: GpuShare, group: GpuGroup, index: FleetIndex) -> GpuReason | None:
    """Why `share` does not have these GPUs; None of its own, and of those that are not listed.

    A GPU that leaves the share is judged by what makes it leave; any other by the whole chain. One that nothing
    else keeps from the share is left to others by perNode.
    """
    if group.profile is None or (group.owned and group.holder == share.name):
        return None
    if group.holder == share.name:
        return index.refusal(share, group.profile, giving_up=True) or GpuReason.PER_NODE_REACHED
    reason = index.refusal(share, group.profile)
    if reason is None:
        return GpuReason.PER_NODE_REACHED if group.holder is None else GpuReason.HELD_BY_SHARE
    return reason
