"""What a plan finds of one node, whatever the shares are and whatever other nodes do. Pure.

Guarantee: facts follow from a node's view, from which of its GPUs claims have, and from whether NVIDIA's DRA driver
offers them, and from nothing else. So a later plan may use them again (`FleetMemory`), and is the plan from nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gpushare.api.gpunode import Assignment
from gpushare.api.names import device_name
from gpushare.planner.gpu_record import GpuRecord, gpu_records
from gpushare.planner.held_gpus import NodeGpus, shared
from gpushare.planner.model import NodeView, Snapshot
from gpushare.planner.selection.refusals import FoundGpu, GpuProfile, profile_of

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    """What a snapshot says of a node besides its view. `claimed`: devices that claims have.

    `unknown`: shares whose claims are not known yet, so that any of their GPUs counts as claimed.
    """

    nvidia_dra: bool = False
    claimed: frozenset[str] = NOTHING
    unknown: frozenset[str] = NOTHING


class RememberedNode:
    """`records`: the node's GPUs by NVML index; `profiles`: of each record, None of a GPU that the agent does not list.

    What is derived is never changed.
    """

    def __init__(self, node: NodeView, given: Given = Given()) -> None:
        self.node = node
        self.given = given
        self.records = gpu_records(node, lambda uuid, holder: _claimed(given, uuid, holder))
        self.profiles: dict[str, GpuProfile | None] = {}
        kinds: dict[GpuProfile, FoundGpu] = {}
        for record in self.records:
            profile = None
            if record.gpu is not None:
                gpu = FoundGpu(node, record.gpu, given.nvidia_dra)
                profile = shared(profile_of(gpu))
                kinds.setdefault(profile, gpu)
            self.profiles[record.uuid] = profile
        self.kinds: Mapping[GpuProfile, FoundGpu] = kinds
        """A GPU of each profile."""

    @cached_property
    def groups(self) -> Mapping[tuple[GpuProfile | None, str | None], list[GpuRecord]]:
        """The GPUs by profile and holder."""
        result: dict[tuple[GpuProfile | None, str | None], list[GpuRecord]] = {}
        for record in self.records:
            result.setdefault((self.profiles[record.uuid], record.holder), []).append(record)
        return result

    @cached_property
    def held(self) -> Mapping[str, NodeGpus]:
        """The GPUs that each share holds."""
        by_holder: dict[str, list[GpuRecord]] = {}
        for record in self.records:
            if record.holder is not None:
                by_holder.setdefault(record.holder, []).append(record)
        return {share: NodeGpus(tuple(records)) for share, records in by_holder.items()}

    @cached_property
    def held_kinds(self) -> Mapping[str, frozenset[GpuProfile | None]]:
        """The profiles of the GPUs that each share holds."""
        return {
            share: frozenset(self.profiles[record.uuid] for record in part.records) for share, part in self.held.items()
        }

    @cached_property
    def holders(self) -> Mapping[str, str]:
        """The share that holds each GPU, by UUID."""
        return {record.uuid: record.holder for record in self.records if record.holder is not None}

    @cached_property
    def settled(self) -> tuple[Assignment, ...] | None:
        """The assignments by UUID, where every holder is assigned its GPU and nothing leaves or waits; else None."""
        assignments = []
        for record in self.records:
            item = record.assignment
            if item is None and record.holder is None:
                continue
            if item is None or item.share != record.holder or _moves(item):
                return None
            assignments.append(item)
        return tuple(sorted(assignments, key=lambda item: item.uuid))

    @cached_property
    def daemons(self) -> frozenset[str]:
        """The shares of the daemons that the node reports."""
        return shared(frozenset(record.daemon.share for record in self.records if record.daemon is not None))

    @cached_property
    def holding(self) -> frozenset[str]:
        """The shares that hold a GPU."""
        return shared(frozenset(self.held))


def _moves(item: Assignment) -> bool:
    return item.draining or item.paused or item.terminate_clients or item.waiting_since is not None


def _claimed(given: Given, uuid: str, holder: str | None) -> bool:
    return holder in given.unknown or (bool(given.claimed) and device_name(uuid) in given.claimed)


class FleetMemory:
    """The facts of each node that the last plan used: the next one asks again only about nodes that changed.

    A node has changed when its view is another object (`NodeView`), so who makes snapshots keeps the views of nodes
    that stay as they are. For one plan at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, RememberedNode] = {}

    def facts(self, snapshot: Snapshot) -> dict[str, RememberedNode]:
        """The facts by node, sorted by name."""
        given = _givens(snapshot)
        rest = given.get("", Given())
        before, nodes = self._known, {}
        for node in sorted(snapshot.nodes, key=lambda node: node.name):
            known, its = before.get(node.name), given.get(node.name, rest)
            if known is None or known.node is not node or (known.given is not its and known.given != its):
                known = RememberedNode(node, its)
            nodes[node.name] = known
        self._known = nodes
        return nodes


def _givens(snapshot: Snapshot) -> dict[str, Given]:
    """What was given to shares by node; under the empty name, of all others."""
    unknown, claimed = NOTHING, snapshot.allocated or {}
    if snapshot.allocated is None:
        unknown = frozenset(share.name for share in snapshot.shares if share.by_claims)
    result = {
        name: Given(name in snapshot.nvidia_dra_nodes, claimed.get(name, NOTHING), unknown)
        for name in {*snapshot.nvidia_dra_nodes, *claimed}
    }
    return {**result, "": Given(unknown=unknown)}
