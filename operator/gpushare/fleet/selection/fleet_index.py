"""What a plan asks of a fleet often, found once: GPUs by node, nodes by selector, refusals by profile. Pure."""

from collections.abc import Mapping
from functools import cached_property, partial

from gpushare.api.conditions import GpuReason
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import LabelSelector
from gpushare.api.names import device_name
from gpushare.fleet.gpu_record import GpuRecord, gpu_records
from gpushare.fleet.model import NodeView, Snapshot
from gpushare.fleet.selection.nodes import NodeIndex
from gpushare.fleet.selection.refusals import SPEC_RULES, Candidate, FoundGpu, GpuProfile, first_refusal, profile_of

Key = tuple[str, str]
"""(node, GPU UUID)."""


class Selection:
    """The nodes of one selector, by name; equal selectors of several shares have the same one."""

    def __init__(self, nodes: tuple[NodeView, ...]) -> None:
        self.nodes = nodes
        self.names = frozenset(node.name for node in nodes)


class FleetIndex:
    """Of one snapshot. `records`: the GPUs of each node, by NVML index; nodes by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.records = fleet_records(snapshot)
        self._nodes = NodeIndex(snapshot.nodes)
        self._nvidia_dra_nodes = snapshot.nvidia_dra_nodes
        self._selections: dict[object, Selection] = {}
        self._profiles: dict[Key, GpuProfile] = {}
        self._of_profile: dict[GpuProfile, FoundGpu] = {}
        self._refused: dict[tuple[str, GpuProfile, bool], GpuReason | None] = {}

    @cached_property
    def reporting(self) -> NodeIndex:
        """The nodes whose agents report GPUs."""
        return NodeIndex(node for node in self._nodes.nodes if node.has_report)

    @cached_property
    def held_by(self) -> Mapping[str, Mapping[str, list[GpuRecord]]]:
        """By share and node, the GPUs that the share holds."""
        result: dict[str, dict[str, list[GpuRecord]]] = {}
        for name, found in self.records.items():
            for record in found:
                if record.holder is not None:
                    result.setdefault(record.holder, {}).setdefault(name, []).append(record)
        return result

    def selected(self, share: GpuShare) -> Selection:
        selector = share.spec.node_selector
        key = _identity(selector)
        found = self._selections.get(key)
        if found is None:
            found = self._selections[key] = Selection(self._nodes.matching(selector))
        return found

    def profile(self, record: GpuRecord) -> GpuProfile | None:
        """None of a GPU that its agent does not list."""
        if record.gpu is None:
            return None
        found = self._profiles.get(record.key)
        if found is None:
            gpu = FoundGpu(record.node, record.gpu, self.nvidia_dra(record))
            found = self._profiles[record.key] = profile_of(gpu)
            self._of_profile.setdefault(found, gpu)
        return found

    def nvidia_dra(self, record: GpuRecord) -> bool:
        return record.node.name in self._nvidia_dra_nodes

    def refusal(self, share: GpuShare, profile: GpuProfile, *, by_spec: bool = False) -> GpuReason | None:
        """Why `share` cannot take a GPU of this profile that nobody holds. `by_spec`: for SPEC_RULES alone."""
        key = share.name, profile, by_spec
        if key not in self._refused:
            found = self._of_profile[profile]
            candidate = Candidate(found.node, found.gpu, found.nvidia_dra, share)
            refusal = first_refusal(candidate, SPEC_RULES) if by_spec else first_refusal(candidate)
            self._refused[key] = refusal.reason if refusal is not None else None
        return self._refused[key]


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


def _identity(selector: LabelSelector) -> object:
    """Hashable, and equal for equal selectors."""
    return (
        frozenset(selector.match_labels.items()),
        tuple((part.key, part.operator, tuple(part.values)) for part in selector.match_expressions),
    )
