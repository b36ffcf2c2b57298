"""A share under a plan: its GPUs, those that leave it, and those that it cannot have."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpushare.api.conditions import ConditionType, DaemonReason, GpuReason
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import (
    ClaimCounts,
    GpuCounts,
    GpuShare,
    GpuShareStatus,
    PlaceCounts,
    SlotCounts,
    UnavailableGpus,
)
from gpushare.api.timestamps import parse_timestamp
from gpushare.messages.refused_writes import RefusedWrite
from gpushare.planner.assign import Owners, deliverable
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.held_gpus import HeldGpus, NodeGpus, limits_key
from gpushare.planner.model import EPOCH, NodeView, Snapshot
from gpushare.planner.rollout import Rollout
from gpushare.planner.selection.fleet_index import FleetIndex, Selection
from gpushare.planner.selection.node_facts import RememberedNode
from gpushare.planner.selection.nodes import no_node, no_product
from gpushare.planner.selection.refusals import Refusal
from gpushare.planner.selection.resource_names import ResourceNames
from gpushare.planner.status.refused import GpuGroup, RefusedGpus, judged, place, selected_gpus

MESSAGE_LENGTH = 1024
"""Bound of the API on the message of a group of unavailable GPUs."""
STARTS = ("", DaemonReason.PENDING, DaemonReason.STARTING, DaemonReason.LIMITS_NOT_IN_FORCE)
"""What a daemon says on its way, also where it takes over other limits."""
START_SECONDS = 120.0
"""So long MPS daemons may take to start, the download of their image included, before that is a problem."""


@dataclass(slots=True)
class ShareSummary:
    """`kept`: the share's GPUs. `draining`: assigned, but leaving. `releasing`: unassigned, its node still lists them.

    `matching` counts the GPUs that the selectors match; `refused_gpus` says why the share does not have some of them.
    `mismatched` counts the selected nodes' GPUs of other products, `silent` are those that report no GPU, `no_node`
    says why none is selected. `undeliverable`: what the cluster lacks for the share's delivery, if anything. `now`:
    when this was decided.
    """

    share: GpuShare
    now: datetime = EPOCH
    rollout: Rollout = field(default_factory=Rollout)
    undeliverable: str = ""
    matching: int = 0
    kept: HeldGpus = field(default_factory=HeldGpus)
    draining: HeldGpus = field(default_factory=HeldGpus)
    releasing: HeldGpus = field(default_factory=HeldGpus)
    refused_gpus: dict[GpuReason, RefusedGpus] = field(default_factory=dict)
    mismatched: Counter[str] = field(default_factory=Counter)
    silent: tuple[NodeView, ...] = ()
    no_node: str = ""
    refused_writes: tuple[RefusedWrite, ...] = ()

    @property
    def leaving(self) -> HeldGpus:
        return HeldGpus((*self.draining.parts, *self.releasing.parts))

    @property
    def held(self) -> HeldGpus:
        return HeldGpus((*self.kept.parts, *self.draining.parts, *self.releasing.parts)) if self.leaving else self.kept

    @property
    def refused(self) -> list[Refusal]:
        """One for each GPU, by node and index."""
        refusals = [refusal_of for refused in self.refused_gpus.values() for refusal_of in refused.each()]
        return [refusal for _, refusal in sorted(refusals, key=lambda refusal_of: place(refusal_of[0]))]

    @property
    def no_product(self) -> str:
        """Why none of the selected nodes' GPUs matches; empty where one does, or where there is none."""
        if self.matching or not self.mismatched:
            return ""
        return no_product(self.share.spec.gpus.products, self.mismatched)

    @property
    def unready(self) -> HeldGpus:
        """The share's GPUs without a verified MPS daemon, without those of which nothing is known now."""
        return self.kept.where(
            lambda part: not part.serving and not part.node.silence, lambda record: not record.verified
        )

    @property
    def starting_until(self) -> datetime | None:
        """When its daemons, of which none does worse than to start, will have taken too long; None: some does worse.

        Counted from when the share got its GPUs or its daemons were verified last, as its conditions in the API say.
        """
        unready = self.unready
        if not unready or not all(_starts(record) for record in unready):
            return None
        since = (_since(self, ConditionType.GPUS_ASSIGNED, "True"), _since(self, ConditionType.DAEMONS_READY, "False"))
        return max(since) + timedelta(seconds=START_SECONDS)

    @property
    def pending_limits(self) -> HeldGpus:
        """The share's GPUs that report other limits than the spec has, or none, by agents that report."""
        wanted = limits_key(self.share.process_limits)
        settled = frozenset([wanted])
        return self.kept.where(
            lambda part: part.limits != settled and not part.node.silence,
            lambda record: limits_key(record.current_limits) != wanted,
        )

    @property
    def changing_until(self) -> datetime | None:
        """When a share that is Ready will have taken too long to take over other limits; None: that is not all.

        Counted from when its limits were in force last, as its conditions in the API say.
        """
        was_ready = any(
            (condition.type, condition.status) == (ConditionType.READY, "True")
            for condition in self.share.status.conditions
        )
        if not was_ready or not self.pending_limits or not all(_takes_limits_over(record) for record in self.unready):
            return None
        return _since(self, ConditionType.LIMITS_ENFORCED, "False") + timedelta(seconds=START_SECONDS)


def _takes_limits_over(record: GpuRecord) -> bool:
    if record.gpu is None or record.gpu.lost or record.daemon is None:
        return False
    return record.daemon.reason == DaemonReason.LIMITS_NOT_IN_FORCE


def _starts(record: GpuRecord) -> bool:
    if record.gpu is not None and record.gpu.lost:
        return False
    return record.daemon is None or record.daemon.reason in STARTS


def _since(summary: ShareSummary, kind: ConditionType, status: str) -> datetime:
    """The moment since which the API has this status; `now` where it has another one yet."""
    for condition in summary.share.status.conditions:
        if (condition.type, condition.status) == (kind, status):
            try:
                return parse_timestamp(condition.last_transition_time)
            except ValueError:
                break
    return summary.now


def summaries(
    snapshot: Snapshot,
    index: FleetIndex,
    owner_of: Owners,
    planned: Mapping[str, tuple[Assignment, ...]],
    rolling: Mapping[str, Rollout],
    resource_names: ResourceNames,
) -> dict[str, ShareSummary]:
    result = {
        share.name: ShareSummary(
            share,
            snapshot.now,
            rolling.get(share.name, Rollout()),
            refused_writes=snapshot.refused_writes.get(share.name, ()),
        )
        for share in snapshot.shares
    }
    _sort_held(result, index.facts, planned)
    known: dict[Selection, tuple[GpuGroup, ...]] = {}
    for summary in result.values():
        share = summary.share
        if share.deleting:
            continue
        if not deliverable(share, snapshot):
            summary.undeliverable = snapshot.no_claims
            continue
        selection = index.selected(share)
        if selection not in known:
            known[selection] = selected_gpus(selection, index, owner_of)
        summary.silent = selection.silent
        _add_selected(summary, known[selection], index, resource_names)
        if not selection.nodes:
            summary.no_node = no_node(share.spec.node_selector, index.reporting)
    return result


def _sort_held(
    result: dict[str, ShareSummary], fleet: Mapping[str, RememberedNode], planned: Mapping[str, tuple[Assignment, ...]]
) -> None:
    parts: dict[tuple[str, str], list[NodeGpus]] = {}
    for name, facts in fleet.items():
        items = planned.get(name, ())
        if items and items is facts.settled:
            for share, part in facts.held.items():
                parts.setdefault((share, "kept"), []).append(part)
            continue
        for key, records in _by_fate(facts, {item.uuid: item for item in items}).items():
            parts.setdefault(key, []).append(NodeGpus(tuple(records)))
    for (share, fate), node_gpus in parts.items():
        if share in result:
            setattr(result[share], fate, HeldGpus(node_gpus))


def _by_fate(facts: RememberedNode, planned: Mapping[str, Assignment]) -> dict[tuple[str, str], list[GpuRecord]]:
    """The GPUs by share, and whether it keeps them (`ShareSummary`)."""
    result: dict[tuple[str, str], list[GpuRecord]] = {}
    for record in facts.records:
        item = planned.get(record.uuid)
        if item is not None:
            result.setdefault((item.share, "draining" if item.draining else "kept"), []).append(record)
        elif record.daemon is not None:
            result.setdefault((record.daemon.share, "releasing"), []).append(record)
    return result


def _add_selected(
    summary: ShareSummary, groups: tuple[GpuGroup, ...], index: FleetIndex, resource_names: ResourceNames
) -> None:
    share = summary.share
    for group, reason in judged(share, groups, index, resource_names):
        if reason is GpuReason.PRODUCT_MISMATCH and group.profile is not None:
            summary.mismatched[group.profile.product] += len(group.records)
        elif reason is not None:
            summary.matching += len(group.records)
            summary.refused_gpus.setdefault(reason, RefusedGpus(reason, share)).groups.append(group)
        elif group.owned and group.holder == share.name:
            summary.matching += len(group.records)


def counts(summary: ShareSummary, claims: ClaimCounts | None = None) -> GpuShareStatus:
    """The status without its conditions. `claims`: of a share that is delivered by them."""
    share, clients = summary.share, summary.share.clients
    ready, assigned = summary.kept.verified, HeldGpus((*summary.kept.parts, *summary.draining.parts))
    memory = clients.memory
    return GpuShareStatus(
        observed_generation=share.metadata.generation,
        gpus=GpuCounts(matching=summary.matching, assigned=len(assigned), ready=ready, draining=len(summary.draining)),
        slots=SlotCounts(total=ready * share.slots_per_gpu, used=summary.held.slots),
        places=_places(summary),
        nodes=len(assigned.nodes),
        summary=f"{ready}/{len(assigned)}",
        threads="whole" if share.whole else f"{clients.threads.default}/{clients.threads.max}%",
        memory="whole" if share.whole else f"{memory.default}/{memory.max or memory.default}",
        gpu_memory_mib=_largest_mib(share, assigned),
        pre_stop=assigned.pre_stop,
        claims=claims,
        unavailable=_grouped(summary),
    )


def _places(summary: ShareSummary) -> PlaceCounts | None:
    """None without a queue: then each slot is a place."""
    share = summary.share
    if share.queue is None:
        return None
    used, waiting = summary.held.places
    return PlaceCounts(total=summary.kept.verified * share.clients.per_gpu, used=used, waiting=waiting)


def _largest_mib(share: GpuShare, assigned: HeldGpus) -> int:
    """A GPU keeps its size while nobody reports it: pods are admitted then, too, and may come to it later."""
    return max(assigned.memory_mib, share.status.gpu_memory_mib if assigned.unlisted else 0)


def _grouped(summary: ShareSummary) -> list[UnavailableGpus]:
    """GPUs of other products are a reason only where none is of a wanted one: most fleets have several products."""
    groups = {reason: (refused.count, refused.message) for reason, refused in summary.refused_gpus.items()}
    if summary.no_product:
        groups[GpuReason.PRODUCT_MISMATCH] = summary.mismatched.total(), summary.no_product
    return [
        UnavailableGpus(reason=reason, count=count, message=message[:MESSAGE_LENGTH])
        for reason, (count, message) in sorted(groups.items())
    ]
