"""One GPU as the fleet sees it: its agent's report, its assignment, and the share that holds it.

A share holds a GPU as long as the node reports its daemon or a container with a slot; the assignment decides only if
the node reports neither. The report outranks the assignment, since it says what runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpushare.api.gpunode import Assignment, DaemonStatus, Gpu, GpuNode, GpuPlaces, Limits
from gpushare.planner.model import NodeView


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """`gpu` is None where the agent does not list it: the node has no report, or the GPU is gone."""

    node: NodeView
    uuid: str
    gpu: Gpu | None
    assignment: Assignment | None
    daemon: DaemonStatus | None
    slots: tuple[int, ...]
    holder: str | None
    pods: frozenset[str] = frozenset()
    """Some of the holder's pods that hold these slots, as namespace/name."""
    claimed: bool = False
    """A ResourceClaim has the GPU or may have it, as the API says; its node reports the same as slots once it knows
    the pod."""
    places: GpuPlaces | None = None
    """None: its share has no queue, and who holds a slot may compute."""

    @property
    def key(self) -> tuple[str, str]:
        return self.node.name, self.uuid

    @property
    def index(self) -> int:
        return self.gpu.index if self.gpu else -1

    @property
    def draining(self) -> bool:
        return self.assignment is not None and self.assignment.draining and self.assignment.share == self.holder

    @property
    def in_use(self) -> bool:
        """Whether a container may have CUDA contexts on it: it has a place or, without a queue, a slot."""
        return bool(self.slots) if self.places is None else self.places.used > 0

    @property
    def users(self) -> frozenset[str]:
        """Some of the pods for which it is in use, as namespace/name."""
        if self.places is None:
            return self.pods
        return frozenset(client.rpartition("/")[0] for client in self.places.held)

    @property
    def verified(self) -> bool:
        """The daemon is verified by news that its node's agent still vouches for."""
        return self.daemon is not None and self.daemon.ready and not self.node.silence

    @property
    def current_limits(self) -> Limits | None:
        """The limits in the latest report, however old; None where nothing is in force."""
        return self.daemon.current_limits if self.daemon is not None else None

    @property
    def unassigned(self) -> bool:
        """The node's assignments are known, and the GPU is not among them. A node that was made again has none yet."""
        gpu_node = self.node.gpu_node
        return self.assignment is None and gpu_node is not None and gpu_node.spec.assignments is not None

    def __str__(self) -> str:
        return f"GPU {self.uuid} of node {self.node.name}"


def gpu_records(node: NodeView, claimed: Callable[[str, str | None], bool] = lambda _, __: False) -> list[GpuRecord]:
    """Every GPU that the node's GpuNode names anywhere, by NVML index, then uuid.

    `claimed`: whether some claim has a GPU, by its uuid and its holder.
    """
    gpu_node = node.gpu_node
    if gpu_node is None:
        return []
    gpus = {gpu.uuid: gpu for gpu in gpu_node.status.gpus}
    assignments = {assignment.uuid: assignment for assignment in gpu_node.spec.assignments or ()}
    daemons = {daemon.uuid: daemon for daemon in gpu_node.status.daemons}
    places = {(item.uuid, item.share): item for item in gpu_node.status.places}
    held: dict[str, dict[str, set[int]]] = {}
    pods: dict[tuple[str, str], set[str]] = {}
    for holding in gpu_node.status.holders:
        if holding.slots:
            held.setdefault(holding.uuid, {}).setdefault(holding.share, set()).update(holding.slots)
            pods.setdefault((holding.uuid, holding.share), set()).update(holding.pods)

    records = []
    for uuid in {*gpus, *assignments, *daemons, *held}:
        daemon, assignment, slots = daemons.get(uuid), assignments.get(uuid), held.get(uuid, {})
        holder = _holder(daemon, slots, assignment)
        taken = tuple(sorted(slots.get(holder, ()))) if holder else ()
        named = frozenset(pods.get((uuid, holder), ())) if holder else frozenset[str]()
        gpu = gpus.get(uuid)
        queued = places.get((uuid, holder)) if holder else None
        records.append(
            GpuRecord(node, uuid, gpu, assignment, daemon, taken, holder, named, claimed(uuid, holder), queued)
        )
    return sorted(records, key=lambda record: (record.index, record.uuid))


def _holder(daemon: DaemonStatus | None, slots: dict[str, set[int]], assignment: Assignment | None) -> str | None:
    if daemon is not None:
        return daemon.share
    if slots:
        return min(slots)
    return assignment.share if assignment is not None else None


def moves_counts_alone(before: GpuNode, after: GpuNode) -> bool:
    """Tells whether two states of a GpuNode differ in nothing but which slots and places are held, where nothing waits
    for that.

    In a fleet that is as planned they lead to the same plan, but for what is in use in the status of a share, and for
    what is said where more is held than offered.
    """
    apart: dict[str, object] = {"holders": [], "places": []}
    if before.status.model_copy(update=apart) != after.status.model_copy(update=apart):
        return False
    if before.metadata != after.metadata or before.spec != after.spec:
        return False
    served = {daemon.uuid: daemon.share for daemon in after.status.daemons}
    settled = {
        item.uuid: item.share
        for item in after.spec.assignments or ()
        if not item.draining and not item.paused and item.waiting_since is None
    }
    held = {(item.uuid, item.share) for status in (before.status, after.status) for item in status.holders}
    held |= {(item.uuid, item.share) for status in (before.status, after.status) for item in status.places}
    return all(served.get(uuid) == settled.get(uuid) == share for uuid, share in held)
