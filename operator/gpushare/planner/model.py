"""The input and the result of a decision about the fleet: plain values, no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from gpushare.api.conditions import ConditionType, DaemonReason, ShareReason
from gpushare.api.gpunode import Assignment, GpuNode
from gpushare.api.gpushare import GpuShare, GpuShareStatus
from gpushare.messages.refused_writes import RefusedWrite
from gpushare.planner.pending import Demand, Pending

Jumps = Mapping[tuple[str, str], timedelta]
"""(UUID, since when it waits) -> by how much that has to move, because the time of day was set since."""
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the fleet needs of one Node, with its GpuNode where there is one.

    `allocatable` holds the names of the resources of which the node offers more than zero. `starting`: it has a
    start-up taint (`names.STARTUP_TAINTS`).
    """

    name: str
    labels: Mapping[str, str]
    ready: bool
    allocatable: frozenset[str]
    gpu_node: GpuNode | None
    starting: bool = False
    silence: str = field(init=False)
    """Why what the agent reported may be old; empty while its heartbeat is renewed, and where nothing is known. Of the
    GpuNode, found once: a plan asks for it several times for each GPU."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "silence", self.gpu_node.silence if self.gpu_node is not None else "")

    @property
    def has_report(self) -> bool:
        """False: the agent has not reported any GPU (yet), so nothing that runs there may be changed."""
        return self.gpu_node is not None and bool(self.gpu_node.status.gpus)

    @property
    def own_resources(self) -> frozenset[str]:
        """The resources under which its agent offers whole GPUs; all others that it offers are other plugins'."""
        daemons = self.gpu_node.status.daemons if self.gpu_node is not None else ()
        taken = DaemonReason.RESOURCE_NAME_TAKEN
        return frozenset(item.resource for item in daemons if item.resource and item.reason != taken)

    @property
    def within_reach(self) -> bool:
        """False: nothing that runs there may be changed."""
        return self.ready and self.has_report and not self.silence

    @property
    def observed(self) -> bool:
        """The agent's status already takes the latest assignments into account."""
        node = self.gpu_node
        return node is not None and 0 < node.metadata.generation <= node.status.observed_generation


@dataclass(frozen=True, slots=True)
class MpsPod:
    """The pod with a share's daemons on one node.

    `template`: the digest of what it was made from. `since`: when its container began, or the pod where none runs.
    `trouble`: why its container does not run, in Kubernetes' own words; `stuck`: that does not pass by itself.
    """

    name: str
    uid: str
    share: str
    node: str
    template: str
    since: datetime
    deleting: bool = False
    running: bool = True
    trouble: str = ""
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """What new MPS pods of a share are made from. `observed`: the DaemonSet controller has seen it."""

    digest: str
    observed: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at `now`. `nvidia_dra_nodes`: nodes with a ResourceSlice of the driver gpu.nvidia.com.

    `templates`: by share; one that is missing has no DaemonSet yet. `no_claims`: why the cluster cannot deliver by
    ResourceClaim; empty where it can. `allocated`: by pool, the devices of ours that claims have, None while that is
    not known. `demand`: claims and what they may have. `jumps`: waits whose beginning moves, since the time of day was
    set. `refused_writes`: by share.
    """

    shares: tuple[GpuShare, ...]
    nodes: tuple[NodeView, ...]
    nvidia_dra_nodes: frozenset[str] = frozenset()
    pods: tuple[MpsPod, ...] = ()
    templates: Mapping[str, Template] = field(default_factory=dict)
    now: datetime = EPOCH
    no_claims: str = ""
    allocated: Mapping[str, frozenset[str]] | None = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    jumps: Jumps = field(default_factory=dict)
    refused_writes: Mapping[str, tuple[RefusedWrite, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefusalVerdict:
    """A condition without its times."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: ShareReason
    message: str


@dataclass(frozen=True, slots=True)
class ShareReport:
    """A share's status; `counts` carries everything but the conditions, `verdicts` carry those without times."""

    counts: GpuShareStatus
    verdicts: tuple[RefusalVerdict, ...]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """How the fleet should be. What is not named here is not changed.

    `assignments`: by node, sorted by uuid; a node that is missing has no report and must not be written.
    `labels`: by node, the shares whose node label it should carry.
    `daemon_sets`: shares that need their DaemonSet; one of a share that no longer exists is only kept.
    `finalizers`: shares that must carry our finalizer; `released`: deleted shares that may go.
    `replaced`: MPS pods to be deleted, so that the DaemonSet makes new ones from the present template.
    `started`: nodes with a start-up taint that has nothing to wait for any more.
    `without_agent`: nodes whose driver is replaced and on which nothing of a share is left: the agent leaves, too.
    `again_at`: when the same snapshot may be planned differently. `pending`: claims that fit on no GPU now.
    """

    assignments: Mapping[str, tuple[Assignment, ...]]
    labels: Mapping[str, frozenset[str]]
    daemon_sets: frozenset[str]
    finalizers: frozenset[str]
    released: frozenset[str]
    replaced: tuple[MpsPod, ...]
    started: frozenset[str]
    without_agent: frozenset[str]
    again_at: datetime | None
    reports: Mapping[str, ShareReport]
    pending: tuple[Pending, ...] = ()
