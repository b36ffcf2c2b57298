"""The loop `observe`: who uses the GPUs, who uses none of what was granted, who is charged, whether memory is short,
and who keeps a place that others wait for.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime

from gpushare.agent.observe.charges import ChargeLog, SharedGpu, charges, initialising_parts, with_places
from gpushare.agent.observe.granted import Reserved, granted_parts, reserved
from gpushare.agent.observe.unused import RunningPart, UnusedParts, running_parts
from gpushare.agent.observe.usage import Reading
from gpushare.agent.observe.usage_reader import UsageSources
from gpushare.agent.observe.violations import UsageMonitor
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.agent.readings import Readings
from gpushare.agent.reconcile.decision import LatestDecisions
from gpushare.agent.terminate.idle_places import IdlePlaces, QueuedGpu
from gpushare.agent.terminate.shortage import ShortageMonitor
from gpushare.api.gpunode import Uuid
from gpushare.grant.model import Grant, context_need_mib
from gpushare.mps.wire import is_fresh

APART = 0.75
"""Part of the interval of observation that lies between two readings at least: an early one judges no client."""


class Observer:
    """`reserved`: what containers hold of the GPUs of shares whose clients may borrow. `parts`: the running containers
    with a part of a shared GPU, at the last observation. `unused`: None until the GPUs were observed once. `charges`:
    what namespaces are charged for.
    """

    def __init__(
        self,
        readings: Readings,
        latest: LatestDecisions,
        usage: UsageMonitor,
        shortages: ShortageMonitor,
        idle: IdlePlaces,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self.usage = usage
        self.charges = ChargeLog()
        self.shortages = shortages
        self._idle = idle
        self.reserved: Mapping[ShareGpu, Reserved] = {}
        self.parts: tuple[RunningPart, ...] = ()
        self.unused: UnusedParts | None = None
        self._readings = readings
        self._latest = latest
        self._clock = clock

    @property
    def observed(self) -> dict[Uuid, Reading]:
        """Who uses each GPU, by the latest reading; without GPUs of which nothing is known now."""
        return self.usage.readings

    async def observe(self) -> None:
        """One turn. Does nothing before the first decision, nor without pods, shares and claims."""
        readings, cache = self._readings, self._readings.cache
        if self._latest.decisions is None or readings.claims.unread or not cache.complete:
            return
        places, claimed = readings.parts()
        pods = cache.pods.objects.values()
        sources = UsageSources(readings.inventory.views, readings.taken(), pods, cache.shares, places, claimed)
        new = await self.usage.observe(sources, cache.published_findings)
        self._charge(places, claimed)
        now = datetime.now(UTC)
        self._find_unused(places, now)
        self._observe_shortages(new, places, claimed, now)
        self._idle.observe(new, dict(self._queued()), cache.shares)

    def _queued(self) -> Iterator[tuple[Uuid, QueuedGpu]]:
        """The GPUs whose share has a queue."""
        readings, now = self._readings, self._clock()
        for uuid, item in readings.directories.shared.items():
            view, decision = readings.inventory.views.get(uuid), self._latest.gpus.get(uuid)
            broker = item.broker
            if broker is not None and broker.places is not None and is_fresh(broker.heartbeat, now):
                is_open = decision is not None and decision.readiness.takes_clients and not decision.plan.replaces_pod
                yield uuid, QueuedGpu(broker, view.utilization if view is not None else None, is_open)

    def _charge(self, places: Mapping[ContainerName, ShareGpu], claimed: Mapping[ContainerName, Grant]) -> None:
        """Nobody is charged before the kubelet was read: who holds slots and whole GPUs is not known."""
        readings, cache = self._readings, self._readings.cache
        if readings.kubelet.view is None:
            return
        granted = granted_parts(cache.pods.objects.values(), places, claimed, cache.shares)
        queued = [name for name, share in cache.shares.items() if share.queue is not None]
        held = with_places(granted, queued, {client for gpu in readings.gpu_places() for client in gpu.held})
        whole = readings.whole_places()
        starting = initialising_parts(self.observed.values(), [*places, *whole])
        self.charges.update(charges(self._gpus(), (*held, *starting), whole), self._clock())

    def _gpus(self) -> Iterator[SharedGpu]:
        """The GPUs that shares have here. One that is lost serves nobody, and is charged to nobody."""
        directories, views = self._readings.directories, self._readings.inventory.views
        shares = {uuid: item.wanted.share for uuid, item in directories.shared.items()}
        shares |= {uuid: item.share for uuid, item in directories.whole.items()}
        for uuid, share in shares.items():
            if (view := views.get(uuid)) is not None and not view.lost:
                yield SharedGpu(share, uuid, view.info.product, view.info.memory_mib)

    def _find_unused(self, places: Mapping[ContainerName, ShareGpu], now: datetime) -> None:
        cache = self._readings.cache
        if self.unused is None:
            node = cache.gpu_node()
            self.unused = UnusedParts(node.status.unused if node is not None else (), now)
        each = {container: (place,) for container, place in places.items()}
        self.parts = tuple(running_parts(cache.pods.objects.values(), each))
        whole = running_parts(cache.pods.objects.values(), self._readings.whole_places())
        self.unused.update(self.observed, (*self.parts, *whole), now)

    def _observe_shortages(
        self,
        new: Collection[Reading],
        places: Mapping[ContainerName, ShareGpu],
        claimed: Mapping[ContainerName, Grant],
        now: datetime,
    ) -> None:
        cache = self._readings.cache
        lending = {name: share for name, share in cache.shares.items() if share.limits_memory is not None}
        parts = list(granted_parts(cache.pods.objects.values(), places, claimed, lending)) if lending else []
        self.reserved = reserved(parts)
        unused = {item.part.container for item in self.unused.longest_first} if self.unused is not None else set()
        waiting: Counter[Uuid] = Counter()
        for container, (_, uuid), grant in parts:
            if container in unused:
                waiting[uuid] += context_need_mib(grant.threads)
        taken = {uuid: item.wanted.share for uuid, item in self._readings.directories.shared.items()}
        self.shortages.observe(new, taken, waiting, cache.shares, cache.published_borrowers, now)
