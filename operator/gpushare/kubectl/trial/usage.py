"""What the copies of a case use of their GPU, as the agent of their node reads it.

The agent's metrics come through the API server's pod proxy, as for `kubectl gpushare top`. Who may not read them gets a
trial without memory and utilisation, and a note that says which right is missing.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from gpushare.api.quantity import MIB
from gpushare.kube.resources import PODS, KubeError
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.commands.top import AGENTS, NO_METRICS, metrics_of, not_reached, right_to_metrics
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.trial.pods import CopyPod
from gpushare.kubectl.views.top import USED

BUSY = "gpushare_gpu_utilization_ratio"
AGE_SECONDS = 2.0
"""What an agent tells is so old at most: of its interval of reading NVML."""
ENOUGH_LOOKS = 3
"""Readings that list a copy as one without a client, or without a launch, after which it never uses the GPU."""
LAUNCHES = "gpushare_container_launches_total"
UNUSED = "gpushare_container_unused_seconds"
NOT_MEASURED = "memory and utilisation were not measured: "


@dataclass(frozen=True, slots=True)
class UsageReading:
    """What pods use now. `memory_mib`: of all of them together. `busy_percent`: of their GPU, which others may use too.
    None: not known. `others`: pods that use memory of the same GPU, as namespace/name. `launches`: what their activity
    pages count; None: they have none. `unused`: one of them runs, and has no client on the GPU.
    """

    memory_mib: int | None
    busy_percent: float | None
    others: frozenset[str] = frozenset()
    launches: float | None = None
    unused: bool = False


UsageReader = Callable[[str, str, Collection[str]], UsageReading]
"""(node, namespace, names of pods): what these pods of that node use now. Raises UsageUnknownError."""


class UsageUnknownError(Exception):
    """An agent's figures cannot be read. The text is a sentence for the trial's reader."""


@dataclass
class UsageSampler:
    """The usage of one case: call `look` on each turn of its waiting. The first error is the last question."""

    read: UsageReader
    namespace: str
    problem: str = ""
    memory_mib: int | None = None
    """The most that all copies had at one time."""
    others: set[str] = field(default_factory=set)
    """Pods that used the same GPU within a window."""
    _busy: list[float] = field(default_factory=list)
    _idle: int = 0
    _launches: float | None = None

    def look(self, pods: Sequence[CopyPod], within_window: bool) -> None:
        """Memory counts at any time, utilisation and others only within the window."""
        node = next((pod.node for pod in pods if pod.node), "")
        if not node or self.problem:
            return
        try:
            reading = self.read(node, self.namespace, {pod.name for pod in pods})
        except UsageUnknownError as error:
            self.problem = str(error)
            return
        if reading.memory_mib is not None:
            self.memory_mib = max(self.memory_mib or 0, reading.memory_mib)
        if reading.launches is not None:
            self._launches = max(self._launches or 0.0, reading.launches)
        if reading.unused or reading.launches == 0:
            self._idle += 1
        if within_window:
            self.others |= reading.others
            self._busy += [] if reading.busy_percent is None else [reading.busy_percent]

    @property
    def used_gpu(self) -> bool | None:
        """By the launches that activity pages count, else by the memory that was seen; None: too little was seen."""
        if self._launches or (self._launches is None and self.memory_mib):
            return True
        return False if self._idle >= ENOUGH_LOOKS else None

    @property
    def busy_percent(self) -> float | None:
        """The mean."""
        return sum(self._busy) / len(self._busy) if self._busy else None


class AgentUsage:
    """Asks the agents of gpushare in namespace `system`."""

    def __init__(self, cluster: Cluster, system: str) -> None:
        self._cluster, self._system = cluster, system

    def __call__(self, node: str, namespace: str, pods: Collection[str]) -> UsageReading:
        """Raises UsageUnknownError."""
        try:
            agents = self._cluster.items(
                PODS, self._system, labelSelector=AGENTS, fieldSelector=f"spec.nodeName={node}"
            ).result()
            if not agents:
                raise UsageUnknownError(f"{NOT_MEASURED}no agent on node {node} in namespace {self._system}")
            asked = metrics_of(self._cluster, agents[0])
            if asked is None:
                raise UsageUnknownError(f"{NOT_MEASURED}{NO_METRICS}")
            return usage_in(asked.result(), namespace, pods)
        except KubeError as error:
            forbidden = error.status == HTTPStatus.FORBIDDEN
            why = f"that needs {right_to_metrics(self._system)}" if forbidden else not_reached(error)
            raise UsageUnknownError(f"{NOT_MEASURED}{why}") from None
        except UnreachableError as error:
            raise UsageUnknownError(f"{NOT_MEASURED}{not_reached(error)}") from None


def usage_in(metrics: str, namespace: str, pods: Collection[str]) -> UsageReading:
    """What pods use by an agent's metrics in Prometheus' text format. Pure."""
    from prometheus_client.parser import text_string_to_metric_families  # not by who may not read metrics

    memory: list[float] = []
    used: set[str] = set()
    holders: dict[str, set[str]] = {}
    busy: dict[str, float] = {}
    launches: list[float] = []
    unused = False
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == BUSY:
                busy[sample.labels["uuid"]] = 100 * sample.value
            elif sample.name == USED and sample.labels["namespace"] == namespace and sample.labels["pod"] in pods:
                memory.append(sample.value)
                used.add(sample.labels["uuid"])
            elif sample.name == LAUNCHES and sample.labels["namespace"] == namespace and sample.labels["pod"] in pods:
                launches.append(sample.value)
            elif sample.name == UNUSED and sample.labels["namespace"] == namespace and sample.labels["pod"] in pods:
                unused = True
            elif sample.name == USED and sample.value > 0:
                holder = f"{sample.labels['namespace']}/{sample.labels['pod']}"
                holders.setdefault(sample.labels["uuid"], set()).add(holder)
    return UsageReading(
        others=frozenset(pod for uuid in used for pod in holders.get(uuid, ())),
        busy_percent=max((busy[uuid] for uuid in used & busy.keys()), default=None),
        memory_mib=-(-int(sum(memory)) // MIB) if memory else None,
        launches=sum(launches) if launches else None,
        unused=unused,
    )
