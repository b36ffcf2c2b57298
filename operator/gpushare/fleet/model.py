"""What goes into a decision about the fleet and what comes out of it: plain values, no clock, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpushare.api.conditions import ConditionType, ShareReason
from gpushare.api.gpunode import Assignment, GpuNode
from gpushare.api.gpushare import GpuShare, GpuShareStatus


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the fleet needs of one Node, with its GpuNode where there is one.

    `allocatable` holds the names of the resources of which the node offers more than zero.
    """

    name: str
    labels: Mapping[str, str]
    ready: bool
    allocatable: frozenset[str]
    gpu_node: GpuNode | None

    @property
    def has_news(self) -> bool:
        """False: the agent has not told of any GPU (yet), so nothing that runs there may be changed."""
        return self.gpu_node is not None and bool(self.gpu_node.status.gpus)

    @property
    def observed(self) -> bool:
        """The agent's status already takes the latest assignments into account."""
        node = self.gpu_node
        return node is not None and 0 < node.metadata.generation <= node.status.observed_generation


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one moment. `nvidia_dra_nodes`: nodes with a ResourceSlice of the driver gpu.nvidia.com."""

    shares: tuple[GpuShare, ...]
    nodes: tuple[NodeView, ...]
    nvidia_dra_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: ShareReason
    message: str


@dataclass(frozen=True, slots=True)
class ShareReport:
    """A share's status; `counts` carries everything but the conditions, `verdicts` carry those without times."""

    counts: GpuShareStatus
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the fleet should be. What is not named here is left as it is.

    `assignments`: by node, sorted by uuid; a node that is missing has no news and is not to be written.
    `labels`: by node, the shares whose node label it should carry.
    `daemon_sets`: shares that need their DaemonSet; one of a share that no longer exists is only kept.
    `finalizers`: shares that must carry our finalizer; `released`: deleted shares that may go.
    """

    assignments: Mapping[str, tuple[Assignment, ...]]
    labels: Mapping[str, frozenset[str]]
    daemon_sets: frozenset[str]
    finalizers: frozenset[str]
    released: frozenset[str]
    reports: Mapping[str, ShareReport]
