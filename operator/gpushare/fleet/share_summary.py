"""A share under a plan: its GPUs, those that leave it, and those that it cannot have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.api.conditions import GpuReason
from gpushare.api.gpunode import Assignment
from gpushare.api.gpushare import (
    ClaimCounts,
    GpuCounts,
    GpuShare,
    GpuShareStatus,
    SlotCounts,
    UnavailableGpus,
)
from gpushare.fleet.assign import Owners, deliverable, selects
from gpushare.fleet.gpu_record import GpuRecord
from gpushare.fleet.model import NodeView, Snapshot
from gpushare.fleet.refusals import SPEC_RULES, Candidate, Refusal, first_refusal, per_node_reached
from gpushare.fleet.rollout import Rollout

MESSAGE_LENGTH = 1024
"""Bound of the API on the message of a group of unavailable GPUs."""


@dataclass(slots=True)
class ShareSummary:
    """`kept`: the share's GPUs. `draining`: assigned, but leaving. `releasing`: unassigned, its node still lists them.

    `matching` counts the GPUs that the selectors match; `refused` says of each that the share does not have why.
    `silent` are the selected nodes that report no GPU. `undeliverable`: what the cluster lacks for the share's
    delivery, if anything.
    """

    share: GpuShare
    rollout: Rollout = field(default_factory=Rollout)
    undeliverable: str = ""
    matching: int = 0
    kept: list[GpuRecord] = field(default_factory=list)
    draining: list[GpuRecord] = field(default_factory=list)
    releasing: list[GpuRecord] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    mismatched: list[Refusal] = field(default_factory=list)
    silent: list[NodeView] = field(default_factory=list)

    @property
    def held(self) -> list[GpuRecord]:
        return [*self.kept, *self.draining, *self.releasing]


def summaries(
    snapshot: Snapshot,
    fleet: Mapping[str, list[GpuRecord]],
    owner_of: Owners,
    planned: Mapping[str, tuple[Assignment, ...]],
    rolling: Mapping[str, Rollout],
) -> dict[str, ShareSummary]:
    result = {share.name: ShareSummary(share, rolling.get(share.name, Rollout())) for share in snapshot.shares}
    _sort_held(result, fleet, planned)
    for summary in result.values():
        share = summary.share
        if share.deleting:
            continue
        if not deliverable(share, snapshot):
            summary.undeliverable = snapshot.no_claims
            continue
        for node in sorted(snapshot.nodes, key=lambda node: node.name):
            if selects(share, node):
                _add_node(summary, node, fleet[node.name], owner_of, node.name in snapshot.nvidia_dra_nodes)
    return result


def _sort_held(
    result: dict[str, ShareSummary], fleet: Mapping[str, list[GpuRecord]], planned: Mapping[str, tuple[Assignment, ...]]
) -> None:
    for name, found in fleet.items():
        wanted = {assignment.uuid: assignment for assignment in planned.get(name, ())}
        for record in found:
            assignment = wanted.get(record.uuid)
            owner = assignment.share if assignment else (record.daemon.share if record.daemon else None)
            summary = result.get(owner or "")
            if summary is None:
                continue
            if assignment is None:
                summary.releasing.append(record)
            else:
                (summary.draining if assignment.draining else summary.kept).append(record)


def _add_node(
    summary: ShareSummary, node: NodeView, found: list[GpuRecord], owner_of: Owners, nvidia_dra: bool
) -> None:
    share = summary.share
    if not node.has_report:
        summary.silent.append(node)
    taken = sum(owner_of.get(record.key) == share.name for record in found)
    for record in found:
        if owner_of.get(record.key) == share.name:
            summary.matching += 1
        elif record.gpu is not None:
            holder = owner_of.get(record.key) or record.holder
            _refuse(summary, Candidate(share, node, record.gpu, holder, nvidia_dra, taken))


def _refuse(summary: ShareSummary, candidate: Candidate) -> None:
    """A GPU that leaves the share is judged by the share's spec alone; any other by the whole chain."""
    if candidate.holder == summary.share.name:
        refusal = first_refusal(candidate, (*SPEC_RULES, (GpuReason.PER_NODE_REACHED, per_node_reached)))
    else:
        refusal = first_refusal(candidate)
    if refusal is None:
        return
    if refusal.reason is GpuReason.PRODUCT_MISMATCH:
        summary.mismatched.append(refusal)
    else:
        summary.matching += 1
        summary.refused.append(refusal)


def counts(summary: ShareSummary, claims: ClaimCounts | None = None) -> GpuShareStatus:
    """The status without its conditions. `claims`: of a share that is delivered by them."""
    share, clients = summary.share, summary.share.spec.clients
    ready = [record for record in summary.kept if record.verified]
    assigned = [*summary.kept, *summary.draining]
    memory = clients.memory
    return GpuShareStatus(
        observed_generation=share.metadata.generation,
        gpus=GpuCounts(
            matching=summary.matching, assigned=len(assigned), ready=len(ready), draining=len(summary.draining)
        ),
        slots=SlotCounts(total=len(ready) * clients.per_gpu, used=sum(len(record.slots) for record in summary.held)),
        nodes=len({record.node.name for record in assigned}),
        summary=f"{len(ready)}/{len(assigned)}",
        threads=f"{clients.threads.default}/{clients.threads.max}%",
        memory=f"{memory.default}/{memory.max or memory.default}",
        gpu_memory_mib=max((record.gpu.memory_mib for record in assigned if record.gpu), default=0),
        claims=claims,
        unavailable=_grouped(summary.refused),
    )


def _grouped(refused: list[Refusal]) -> list[UnavailableGpus]:
    groups: dict[GpuReason, list[str]] = {}
    for refusal in refused:
        groups.setdefault(refusal.reason, []).append(refusal.message)
    return [
        UnavailableGpus(reason=reason, count=len(messages), message=messages[0][:MESSAGE_LENGTH])
        for reason, messages in sorted(groups.items())
    ]
