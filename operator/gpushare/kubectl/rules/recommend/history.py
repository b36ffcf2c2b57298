"""What was seen of a share over a time, wherever it was read: the input of every rule. Pure.

Memory is in MiB, times are Unix seconds, and a sample is one reading of the share's GPUs; samples are `step` apart.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare


class HistorySource(StrEnum):
    PROMETHEUS = "Prometheus"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Observed:
    """How much of something was seen: in how many samples, the first of them at `since`."""

    samples: int
    since: float


@dataclass(frozen=True, slots=True)
class GpuPast:
    """One GPU of the share, while the share had its present `perGpu`.

    `full`: samples in which every slot was held. `busy_when_full`: 95th percentile of NVML's utilisation in those, as a
    part of 1. `memory_most`: of all its clients together. `threads_most`: the threads of all its client processes
    together, as a part of 1; those of a sample's whole `step` count. None: no sample says.
    """

    uuid: Uuid
    memory_mib: int
    client_ceiling: int
    samples: int
    held_most: int
    full: int
    busy_when_full: float | None = None
    memory_most: int | None = None
    threads_most: float | None = None


@dataclass(frozen=True, slots=True)
class ActivityPast:
    """What a container with a class says of itself. `active`: the part of its time, of 1, with work under way."""

    client_class: str
    active: float
    launches: int
    samples: int


@dataclass(frozen=True, slots=True)
class ContainerPast:
    """One container on one GPU. `granted`: MiB; None: nothing says. `activity`: None: it has no class, is gone, or is
    not asked about."""

    namespace: str
    pod: str
    container: str
    uuid: Uuid
    samples: int
    memory_most: int
    memory_p95: int
    granted: int | None
    activity: ActivityPast | None = None

    @property
    def workload(self) -> str:
        return workload_of(self.namespace, self.pod)


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """A step in which the GPU's MPS server had a fatal fault. `present`: workloads with a process on the GPU."""

    uuid: Uuid
    at: float
    present: frozenset[str]


@dataclass(frozen=True, slots=True)
class ShareHistory:
    """`begin`, `end`: the time that was asked about. `full`: samples in which every slot of every GPU was held.
    `held_together`: the most slots that were held of all GPUs at one time.

    `clients`: while the share had its present `perGpu`. `defaults`: while somebody had the present `memory.default`.
    None: in no sample. `gpus`: those that the share has now.
    """

    share: GpuShare
    source: HistorySource
    begin: float
    end: float
    step: float
    clients: Observed | None = None
    full: int = 0
    held_together: int = 0
    defaults: Observed | None = None
    gpus: Sequence[GpuPast] = ()
    containers: Sequence[ContainerPast] = ()
    faults: Sequence[FaultSeen] = ()


# Names that controllers give: a ReplicaSet's hash and a pod's suffix have these characters alone (apimachinery's rand).
_CHOSEN = "[bcdfghjklmnpqrstvwxz2456789]"
_MADE = re.compile(rf"(?P<name>.+?)(?:(?:-{_CHOSEN}{{6,10}})?-{_CHOSEN}{{5}}|-\d{{1,5}})")


def workload_of(namespace: str, pod: str) -> str:
    """`namespace/name` of what made the pod, by the way in which controllers name pods; else the pod itself."""
    made = _MADE.fullmatch(pod)
    return f"{namespace}/{made['name'] if made else pod}"
