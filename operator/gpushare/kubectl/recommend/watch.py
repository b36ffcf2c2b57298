"""The history of a share by a short watch: what the agents served, again and again. Pure.

A glimpse: it shows what clients have now, and nothing of what they do at other times.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import MIB
from gpushare.kubectl.recommend.queries import CONTAINER, KnownGpu
from gpushare.kubectl.rules.recommend.history import ContainerPast, GpuPast, HistorySource, Observed, ShareHistory
from gpushare.kubectl.rules.trial.printed import percentile

SLOTS = "gpushare_slots"
HELD = "gpushare_slots_held"
BUSY = "gpushare_gpu_utilization_ratio"
USED = "gpushare_container_memory_used_bytes"
GRANTED = "gpushare_container_memory_granted_bytes"
READ = {SLOTS, HELD, BUSY, USED, GRANTED}


@dataclass(frozen=True, slots=True)
class Glance:
    """What all agents served at one time. `values`: by metric, then by the values of its labels."""

    at: float
    values: Mapping[str, Mapping[tuple[str, ...], float]]


def glance_of(at: float, texts: Iterable[str]) -> Glance:
    """`texts`: of each agent. Keys are (share, uuid), (uuid,), or (share, namespace, pod, container, uuid)."""
    values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in READ}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in READ:
                    wanted = ("uuid",) if sample.name == BUSY else ("share", "uuid")
                    labels = ("share", *CONTAINER) if sample.name in (USED, GRANTED) else wanted
                    values[sample.name][tuple(sample.labels.get(label, "") for label in labels)] = sample.value
    return Glance(at, values)


@dataclass(slots=True)
class _GpuSeen:
    """The history of one GPU, from glance to glance."""

    samples: int = 0
    held_most: int = 0
    full: int = 0
    busy_when_full: list[float] = field(default_factory=list)
    memory_most: int | None = None


class ShareWatch:
    """Follows one share from glance to glance."""

    def __init__(self, share: GpuShare) -> None:
        self._share = share
        self._gpus: dict[Uuid, _GpuSeen] = defaultdict(_GpuSeen)
        self._used: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._granted: dict[tuple[str, ...], int] = {}
        self._clients: Observed | None = None
        self._defaults: Observed | None = None
        self._full = 0
        self._held_together = 0

    def add(self, glance: Glance) -> None:
        now = self._share.clients.per_gpu
        held = {uuid: count for uuid, count in self._of(glance, HELD).items() if self._of(glance, SLOTS)[uuid] == now}
        if held:
            self._clients = _also(self._clients, glance.at)
            self._full += min(held.values()) >= now
            self._held_together = max(self._held_together, int(sum(held.values())))
        for uuid, count in held.items():
            self._slots(uuid, int(count), glance.values[BUSY].get((uuid,)))
        self._memory(glance)

    def history(self, gpus: Mapping[Uuid, KnownGpu], begin: float, end: float, step: float) -> ShareHistory:
        """`gpus`: those of the cluster. `step`: seconds between two glances."""
        return ShareHistory(
            share=self._share,
            source=HistorySource.WATCH,
            begin=begin,
            end=end,
            step=step,
            clients=self._clients,
            full=self._full,
            held_together=self._held_together,
            defaults=self._defaults,
            gpus=[
                GpuPast(
                    uuid=uuid,
                    memory_mib=gpu.memory_mib,
                    client_ceiling=gpu.client_ceiling,
                    samples=seen.samples,
                    held_most=seen.held_most,
                    full=seen.full,
                    busy_when_full=percentile(seen.busy_when_full, 95),
                    memory_most=seen.memory_most,
                )
                for uuid, gpu in gpus.items()
                for seen in [self._gpus.get(uuid, _GpuSeen())]
                if gpu.share == self._share.name
            ],
            containers=[
                ContainerPast(
                    *(where[0], where[1], where[2], where[3]),
                    samples=len(amounts),
                    memory_most=max(amounts),
                    memory_p95=int(percentile(amounts, 95) or 0),
                    granted=self._granted.get(where),
                )
                for where, amounts in self._used.items()
                if where[-1] in gpus
            ],
        )

    def _slots(self, uuid: Uuid, held: int, busy: float | None) -> None:
        seen, every = self._gpus[uuid], self._share.clients.per_gpu
        seen.samples += 1
        seen.held_most = max(seen.held_most, min(held, every))
        if held >= every:
            seen.full += 1
            seen.busy_when_full += [] if busy is None else [busy]

    def _memory(self, glance: Glance) -> None:
        together: Counter[Uuid] = Counter()
        for where, amount in self._containers(glance, USED).items():
            mib = -(-int(amount) // MIB)
            self._used[where].append(mib)
            together[where[-1]] += mib
        for uuid, mib in together.items():
            self._gpus[uuid].memory_most = max(self._gpus[uuid].memory_most or 0, mib)
        grants = {where: int(amount) // MIB for where, amount in self._containers(glance, GRANTED).items()}
        self._granted |= grants
        if self._share.memory_default_mib in grants.values():
            self._defaults = _also(self._defaults, glance.at)

    def _of(self, glance: Glance, metric: str) -> dict[Uuid, float]:
        values = {uuid: value for (share, uuid), value in glance.values[metric].items() if share == self._share.name}
        return defaultdict(float, values)

    def _containers(self, glance: Glance, metric: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: value for key, value in glance.values[metric].items() if key[0] == self._share.name}


def _also(seen: Observed | None, at: float) -> Observed:
    return Observed(1, at) if seen is None else Observed(seen.samples + 1, seen.since)
