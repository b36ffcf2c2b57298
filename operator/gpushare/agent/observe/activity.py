"""What clients with a class did on each GPU, for each container, by what the attach brokers tell of them. Pure.

Their processes say it of themselves: it is for looking, and nothing is billed or ended by it.

Guarantees: a total never falls while this agent runs, whatever restarts beside it: brokers, or the container. It begins
with what was done since this agent looks, so that nothing counts twice. Totals go with their pods, so they are bounded.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.pods import Pod
from gpushare.mps.wire import BrokerState, ClientActivity
from gpushare.process.procfs import TICKS_PER_SECOND

MAX_REMEMBERED = 512
"""Processes of each GPU, whose latest figures are known."""

_Process = tuple[int, int]
_Container = tuple[str, str]


@dataclass(slots=True)
class _Totals:
    """`gave_way`: by the uid of the protected pod; empty for what is not known of whom."""

    client_class: str
    launches: int = 0
    active: float = 0.0
    last_launch: float | None = None
    longest: float = 0.0
    gave_way: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _GpuActivity:
    since: float
    read: dict[_Process, ClientActivity] = field(default_factory=dict)
    totals: dict[_Container, _Totals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerActivity:
    """`where`: namespace, pod, container, share and GPU. `last_launch`: CLOCK_BOOTTIME seconds; None: none is known.
    `longest`: seconds that its longest kernel took. `gave_way`: seconds, by protected pod, as namespace/name; empty: to
    pods that are gone or not known.
    """

    where: tuple[str, str, str, ShareName, Uuid]
    client_class: str
    launches: int
    active: float
    last_launch: float | None
    longest: float
    gave_way: Mapping[str, float]


class ActivityLog:
    """Times are CLOCK_BOOTTIME seconds."""

    def __init__(self) -> None:
        self._gpus: dict[Uuid, _GpuActivity] = {}

    def update(self, state: BrokerState, now: float) -> None:
        """Takes what a broker has written."""
        gpu = self._gpus.setdefault(state.uuid, _GpuActivity(now))
        pods = {(item.pid, item.started): item.pod_uid for item in state.activity}
        for item in state.activity:
            process = (item.pid, item.started)
            before = gpu.read.pop(process, None)
            if item.fault:
                continue
            gpu.read[process] = item
            if before is None and item.started / TICKS_PER_SECOND < gpu.since:
                before = item
            totals = gpu.totals.setdefault((item.pod_uid, item.container), _Totals(item.client_class))
            _add(totals, item, _comparable(item, before), pods)
        while len(gpu.read) > MAX_REMEMBERED:
            del gpu.read[next(iter(gpu.read))]

    def keep(self, present: Collection[Uuid], pods: Collection[str]) -> None:
        """Forgets every other GPU and pod. `pods`: by the uid in the names of their cgroups."""
        self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if uuid in present}
        for gpu in self._gpus.values():
            gpu.totals = {container: totals for container, totals in gpu.totals.items() if container[0] in pods}

    def containers(self, shares: Mapping[Uuid, ShareName], pods: Mapping[str, Pod]) -> Iterator[ContainerActivity]:
        """`shares`: of the GPUs. `pods`: as for `keep`."""
        for uuid, gpu in self._gpus.items():
            for (pod_uid, container), totals in gpu.totals.items():
                if uuid not in shares or pod_uid not in pods:
                    continue
                metadata = pods[pod_uid]["metadata"]
                where = (metadata["namespace"], metadata["name"], container, shares[uuid], uuid)
                yield ContainerActivity(
                    where,
                    totals.client_class,
                    totals.launches,
                    totals.active,
                    totals.last_launch,
                    totals.longest,
                    _by_name(totals.gave_way, pods),
                )


def _comparable(item: ClientActivity, before: ClientActivity | None) -> ClientActivity | None:
    """None: the process counts from zero, as after another program took its place (`exec`)."""
    return before if before is not None and item.launches >= before.launches else None


def _add(totals: _Totals, item: ClientActivity, before: ClientActivity | None, pods: Mapping[_Process, str]) -> None:
    totals.launches += item.launches - (before.launches if before is not None else 0)
    totals.active += max(0.0, item.active_seconds - (before.active_seconds if before is not None else 0.0))
    totals.last_launch = max(filter(None, (totals.last_launch, item.last_launch)), default=None)
    totals.longest = max([totals.longest, *(kernel.seconds for kernel in item.longest)])
    left = max(0.0, item.gave_way_seconds - (before.gave_way_seconds if before is not None else 0.0))
    known = {(to.pid, to.started): to.seconds for to in before.gave_way_to} if before is not None else {}
    for to in item.gave_way_to:
        more = to.seconds - known.get((to.pid, to.started), 0.0)
        more = min(left, more if more >= 0 else to.seconds)  # less: another broker counts anew
        left -= more
        _gave_way(totals, pods.get((to.pid, to.started), ""), more)
    _gave_way(totals, "", left)


def _gave_way(totals: _Totals, pod_uid: str, seconds: float) -> None:
    totals.gave_way[pod_uid] = totals.gave_way.get(pod_uid, 0.0) + seconds


def _by_name(gave_way: Mapping[str, float], pods: Mapping[str, Pod]) -> dict[str, float]:
    named: dict[str, float] = {}
    for pod_uid, seconds in gave_way.items():
        metadata = pods[pod_uid]["metadata"] if pod_uid in pods else None
        name = f"{metadata['namespace']}/{metadata['name']}" if metadata is not None else ""
        named[name] = named.get(name, 0.0) + seconds
    return named
