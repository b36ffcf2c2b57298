"""How a share stands once a plan is made: its GPUs, those on their way out, those that it could not have."""

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
from gpushare.fleet.refusals import WISH, Candidate, Refusal, first_refusal, over_per_node
from gpushare.fleet.rollout import Rollout

MESSAGE_LENGTH = 1024
"""Bound of the API on the message of a group of unavailable GPUs."""


@dataclass(slots=True)
class ShareSummary:
    """`kept`: the share's GPUs. `draining`: assigned, but leaving. `releasing`: unassigned, its node still lists them.

    `matching` counts the GPUs that the selectors match; `refused` tells why each of those that the share does not
    keep is not its own; `silent` are the selected nodes without news of any GPU. `undeliverable`: what the cluster
    lacks for the share's delivery, if anything.
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


def standings(
    snapshot: Snapshot,
    fleet: Mapping[str, list[GpuRecord]],
    given: Owners,
    planned: Mapping[str, tuple[Assignment, ...]],
    rolling: Mapping[str, Rollout],
) -> dict[str, ShareSummary]:
    result = {share.name: ShareSummary(share, rolling.get(share.name, Rollout())) for share in snapshot.shares}
    _sort_held(result, fleet, planned)
    for standing in result.values():
        share = standing.share
        if share.deleting:
            continue
        if not deliverable(share, snapshot):
            standing.undeliverable = snapshot.no_claims
            continue
        for node in sorted(snapshot.nodes, key=lambda node: node.name):
            if selects(share, node):
                _look_at(standing, node, fleet[node.name], given, node.name in snapshot.nvidia_dra_nodes)
    return result


def _sort_held(
    result: dict[str, ShareSummary], fleet: Mapping[str, list[GpuRecord]], planned: Mapping[str, tuple[Assignment, ...]]
) -> None:
    for name, found in fleet.items():
        wanted = {assignment.uuid: assignment for assignment in planned.get(name, ())}
        for place in found:
            assignment = wanted.get(place.uuid)
            owner = assignment.share if assignment else (place.daemon.share if place.daemon else None)
            standing = result.get(owner or "")
            if standing is None:
                continue
            if assignment is None:
                standing.releasing.append(place)
            else:
                (standing.draining if assignment.draining else standing.kept).append(place)


def _look_at(standing: ShareSummary, node: NodeView, found: list[GpuRecord], given: Owners, nvidia_dra: bool) -> None:
    share = standing.share
    if not node.has_news:
        standing.silent.append(node)
    taken = sum(given.get(place.key) == share.name for place in found)
    for place in found:
        if given.get(place.key) == share.name:
            standing.matching += 1
        elif place.gpu is not None:
            holder = given.get(place.key) or place.holder
            _refuse(standing, Candidate(share, node, place.gpu, holder, nvidia_dra, taken))


def _refuse(standing: ShareSummary, candidate: Candidate) -> None:
    """A GPU on its way out is told by what the spec says of it; any other by the whole chain."""
    if candidate.holder == standing.share.name:
        refusal = first_refusal(candidate, (*WISH, (GpuReason.OVER_PER_NODE, over_per_node)))
    else:
        refusal = first_refusal(candidate)
    if refusal is None:
        return
    if refusal.reason is GpuReason.PRODUCT_MISMATCH:
        standing.mismatched.append(refusal)
    else:
        standing.matching += 1
        standing.refused.append(refusal)


def counts(standing: ShareSummary, claims: ClaimCounts | None = None) -> GpuShareStatus:
    """The status without its conditions. `claims`: of a share that is delivered by them."""
    share, clients = standing.share, standing.share.spec.clients
    ready = [place for place in standing.kept if place.daemon is not None and place.daemon.ready]
    assigned = [*standing.kept, *standing.draining]
    memory = clients.memory
    return GpuShareStatus(
        observed_generation=share.metadata.generation,
        gpus=GpuCounts(
            matching=standing.matching, assigned=len(assigned), ready=len(ready), draining=len(standing.draining)
        ),
        slots=SlotCounts(total=len(ready) * clients.per_gpu, used=sum(len(place.slots) for place in standing.held)),
        nodes=len({place.node.name for place in assigned}),
        summary=f"{len(ready)}/{len(assigned)}",
        threads=f"{clients.threads.default}/{clients.threads.max}%",
        memory=f"{memory.default}/{memory.max or memory.default}",
        gpu_memory_mib=max((place.gpu.memory_mib for place in assigned if place.gpu), default=0),
        claims=claims,
        unavailable=_grouped(standing.refused),
    )


def _grouped(refused: list[Refusal]) -> list[UnavailableGpus]:
    groups: dict[GpuReason, list[str]] = {}
    for refusal in refused:
        groups.setdefault(refusal.reason, []).append(refusal.message)
    return [
        UnavailableGpus(reason=reason, count=len(messages), message=messages[0][:MESSAGE_LENGTH])
        for reason, messages in sorted(groups.items())
    ]
