"""What a plan asks of a fleet often, found once: nodes by selector, GPUs by holder, refusals by profile. Pure."""

from collections.abc import Mapping
from functools import cached_property

from gpushare.api.conditions import GpuReason
from gpushare.api.gpushare import GpuShare
from gpushare.api.meta import LabelSelector
from gpushare.planner.gpu_record import GpuRecord
from gpushare.planner.held_gpus import NodeGpus
from gpushare.planner.model import NodeView, Snapshot
from gpushare.planner.selection.node_facts import FleetMemory, RememberedNode
from gpushare.planner.selection.nodes import NodeIndex
from gpushare.planner.selection.refusals import GIVE_UP_RULES, Candidate, FoundGpu, GpuProfile, first_refusal


class Selection:
    """The nodes of one selector, by name; equal selectors of several shares have the same one."""

    def __init__(self, nodes: tuple[NodeView, ...]) -> None:
        self.nodes = nodes
        self.names = frozenset(node.name for node in nodes)
        self.silent = tuple(node for node in nodes if not node.has_report)
        """Those that report no GPUs."""


class FleetIndex:
    """The nodes and GPUs of one snapshot. `facts`: of each node, by name, in the order of names."""

    def __init__(self, snapshot: Snapshot, memory: FleetMemory | None = None) -> None:
        """`memory`: of the plan before."""
        self.facts: Mapping[str, RememberedNode] = (memory or FleetMemory()).facts(snapshot)
        self._nodes = NodeIndex(snapshot.nodes)
        self._selections: dict[object, Selection] = {}
        self._of_profile: dict[GpuProfile, FoundGpu] = {}
        self._refused: dict[tuple[str, GpuProfile, bool], GpuReason | None] = {}
        for facts in self.facts.values():
            for profile, example in facts.kinds.items():
                self._of_profile.setdefault(profile, example)

    @cached_property
    def reporting(self) -> NodeIndex:
        """The nodes whose agents report GPUs."""
        return NodeIndex(node for node in self._nodes.nodes if node.has_report)

    @cached_property
    def held_by(self) -> Mapping[str, Mapping[str, NodeGpus]]:
        """The GPUs that a share holds, by share and node."""
        result: dict[str, dict[str, NodeGpus]] = {}
        for name, facts in self.facts.items():
            for share, part in facts.held.items():
                result.setdefault(share, {})[name] = part
        return result

    def selected(self, share: GpuShare) -> Selection:
        selector = share.spec.node_selector
        key = _identity(selector)
        selection = self._selections.get(key)
        if selection is None:
            selection = self._selections[key] = Selection(self._nodes.matching(selector))
        return selection

    def profile(self, record: GpuRecord) -> GpuProfile | None:
        """The GPU's profile; None of one that its agent does not list."""
        return self.facts[record.node.name].profiles[record.uuid]

    def refusal(self, share: GpuShare, profile: GpuProfile, *, giving_up: bool = False) -> GpuReason | None:
        """Why `share` cannot take a GPU of this profile that nobody holds, or, `giving_up`, cannot keep one."""
        key = share.name, profile, giving_up
        if key not in self._refused:
            example = self._of_profile[profile]
            candidate = Candidate(example.node, example.gpu, example.nvidia_dra, share)
            refusal = first_refusal(candidate, GIVE_UP_RULES) if giving_up else first_refusal(candidate)
            self._refused[key] = refusal.reason if refusal is not None else None
        return self._refused[key]


def fleet_records(snapshot: Snapshot) -> dict[str, list[GpuRecord]]:
    """Each GPU that a GpuNode names, by node."""
    return {name: facts.records for name, facts in FleetMemory().facts(snapshot).items()}


def _identity(selector: LabelSelector) -> object:
    """Hashable, and equal for equal selectors."""
    return (
        frozenset(selector.match_labels.items()),
        tuple((part.key, part.operator, tuple(part.values)) for part in selector.match_expressions),
    )
