"""What each namespace is charged for of this node's GPUs, and what of them is idle. Pure: times are handed in.

A container is charged for the part of a GPU that was granted to it, from the moment in which the kubelet or a claim
gives it that part until it is given back, whatever the container does with it; where its share has a queue, as long as
it has a place. Nothing that a tenant's process says or
uses changes that.

Guarantees: what a GPU's namespaces are charged and what is idle add up to the time for which a share had the GPU while
this agent looked. A total never falls while this agent runs. Accounts are bounded in number.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare.agent.observe.usage import Reading
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.grant.model import Grant

IDLE = "__idle__"
"""Stands where a namespace does, for what nobody holds; no namespace has such a name. OpenCost calls it so, too."""
FIRST_SHOWN = 120.0
"""An account is shown as 0 for its first seconds: Prometheus counts no increase that a series has when it appears, and
so would lose containers that end between two scrapes."""
KEPT = 3600.0
"""An account is kept for so long after it was charged last, so that it is scraped."""
MOST_ACCOUNTS = 1000

GrantedPart = tuple[ContainerName, ShareGpu, Grant]


@dataclass(frozen=True, slots=True)
class Account:
    """Whom time of a GPU is charged to. `namespace`: may be IDLE."""

    namespace: str
    share: ShareName
    uuid: Uuid
    product: str


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU that a share has, with its memory in MiB."""

    share: ShareName
    uuid: Uuid
    product: str
    memory_mib: int


def part_of(grant: Grant, gpu: SharedGpu) -> float:
    """The larger of what the grant has of the GPU's threads and of its memory, as a part of 1. What a container of
    several processes may have of the threads is the sum; what it may borrow of the memory does not count."""
    threads = grant.threads * grant.processes / 100
    return min(1.0, max(threads, grant.memory_mib / gpu.memory_mib))


def initialising_parts(readings: Iterable[Reading], listed: Collection[ContainerName]) -> Iterator[GrantedPart]:
    """The parts of ordinary init containers with a client: the kubelet's list, `listed`, leaves those out. Where it has
    another container of the pod, that one holds the same slot."""
    pods = {(namespace, pod) for namespace, pod, _ in listed}
    parts = {
        ((usage.namespace, usage.pod, usage.container), (usage.share, usage.uuid)): usage.grant
        for reading in readings
        for usage in reading.usages
        if usage.slot and usage.grant is not None and (usage.namespace, usage.pod) not in pods
    }
    return ((container, place, grant) for (container, place), grant in parts.items())


def with_places(
    granted: Iterable[GrantedPart], queued: Collection[ShareName], held: Collection[str]
) -> Iterator[GrantedPart]:
    """Without those that wait for a place: more hold slots than the GPU has parts. `queued`: the shares with a queue.
    `held`: the containers that have a place there, as namespace/pod/container.
    """
    for part in granted:
        container, (share, _), _ = part
        if share not in queued or "/".join(container) in held:
            yield part


def charges(
    gpus: Iterable[SharedGpu], granted: Iterable[GrantedPart], whole: Mapping[ContainerName, Collection[ShareGpu]]
) -> dict[Account, float]:
    """How much of each GPU is charged to whom now, as a part of 1; of each GPU it is 1 together. `whole`: the whole
    GPUs of containers.

    Where the parts of a GPU come to more than 1, as with 100 % of the threads for each client, each is charged in
    proportion.
    """
    known = {(gpu.share, gpu.uuid): gpu for gpu in gpus}
    held: dict[ShareGpu, dict[str, float]] = {place: defaultdict(float) for place in known}
    for (namespace, _, _), place, grant in granted:
        if place in known:
            held[place][namespace] += part_of(grant, known[place])
    for (namespace, _, _), places in whole.items():
        for place in known.keys() & places:
            held[place][namespace] += 1.0
    charged: dict[Account, float] = {}
    for place, parts in held.items():
        gpu, together = known[place], sum(parts.values())
        for namespace, part in parts.items():
            charged[Account(namespace, gpu.share, gpu.uuid, gpu.product)] = part / max(1.0, together)
        charged[Account(IDLE, gpu.share, gpu.uuid, gpu.product)] = max(0.0, 1.0 - together)
    return charged


@dataclass(slots=True)
class _Total:
    began: float
    charged_at: float
    seconds: float = 0.0


class ChargeLog:
    """GPU-seconds by account. `charged`: how much of its GPU each is charged for now. Times: CLOCK_BOOTTIME seconds."""

    def __init__(self) -> None:
        self.charged: Mapping[Account, float] = {}
        self._totals: dict[Account, _Total] = {}
        self._at = 0.0

    def update(self, charged: Mapping[Account, float], now: float) -> None:
        """Charges what was held until now, by what was known last; from now on `charged` is held, see `charges`."""
        for account, part in self.charged.items():
            total = self._totals[account]
            total.seconds += part * (now - self._at)
            total.charged_at = now
        for account in charged:
            self._totals.setdefault(account, _Total(now, now))
        self.charged, self._at = charged, now
        self._forget(now)

    def totals(self, now: float) -> dict[Account, float]:
        """The GPU-seconds of each account up to now."""
        return {
            account: 0.0
            if now - total.began < FIRST_SHOWN
            else total.seconds + self.charged.get(account, 0.0) * (now - self._at)
            for account, total in self._totals.items()
        }

    def _forget(self, now: float) -> None:
        """Forgets who holds nothing: for KEPT, or the longest where accounts are too many."""
        gone = [account for account in self._totals if account not in self.charged]
        gone.sort(key=lambda account: self._totals[account].charged_at)
        excess = len(self._totals) - MOST_ACCOUNTS
        for number, account in enumerate(gone):
            if number < excess or now - self._totals[account].charged_at >= KEPT:
                del self._totals[account]
