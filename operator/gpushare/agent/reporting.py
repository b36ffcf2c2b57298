"""Publishes the agent's state: the GpuNode's status and, for claims, the ResourceSlice. Writes only what differs.

A GpuNode is deleted with its Node object, by garbage collection; while the agent runs, it comes back with the Node.

Guarantees: a change of the status that others act on (a daemon becomes ready, a GPU is drained) is written at once, any
other change `Intervals.status` after the last write. Both spend from one allowance, which earns one write per 2 s and
saves up to ten: shares that are made and deleted in quick succession are not held up, and a status that flaps all day
costs the API server little.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.dra.plugin import is_registered
from gpushare.agent.observation import Observer
from gpushare.agent.observe.activity import ContainerActivity
from gpushare.agent.observe.usage import Reading
from gpushare.agent.podresources.holdings import ShareGpu, Slots, merged_holdings
from gpushare.agent.readings import Readings
from gpushare.agent.reconcile.daemon_files import original_mode
from gpushare.agent.reconcile.decision import DecisionInput, Decisions, GpuDecision, LatestDecisions
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.metrics import NodeSnapshot
from gpushare.agent.status.status import NodeFacts, build, offered_by_nvidia, own_part, urgent
from gpushare.api import names
from gpushare.api.gpunode import GpuNode, GpuNodeStatus, Uuid
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.client import API_ERRORS, GPU_NODES, NODES, Kube, Object
from gpushare.mps.layout import gpu_dir

LOG = logging.getLogger(__name__)

EARNED_EVERY = 2.0
SAVED = 10.0
MANAGER = "gpushare-agent"
RETRY_SECONDS = 5.0
CACHE_LAG_SECONDS = 5.0
RELEASE = version("gpushare")
"""Read once: it is a search through the installed packages."""


@dataclass(slots=True)
class Throttle:
    """When a changed status may be written. Pure: `now` is in seconds, monotonic.

    `interval`: seconds between two writes that are not urgent.
    """

    interval: float
    allowance: float = SAVED
    counted_at: float = 0.0
    last_write: float = -math.inf

    def wait(self, now: float, *, urgent: bool) -> float:
        """Seconds until a write is due; 0 means now."""
        earned = self._allowance(now)
        for_allowance = max(0.0, (1.0 - earned) * EARNED_EVERY)
        return for_allowance if urgent else max(for_allowance, self.last_write + self.interval - now)

    def wrote(self, now: float) -> None:
        self.allowance = self._allowance(now) - 1.0
        self.counted_at = self.last_write = now

    def _allowance(self, now: float) -> float:
        return min(SAVED, self.allowance + (now - self.counted_at) / EARNED_EVERY)


class GpuNodeWriter:
    def __init__(self, kube: Kube, node: str, clock: Callable[[], float], interval: float) -> None:
        """`clock`: seconds, monotonic. `interval`: seconds between two writes that are not urgent."""
        self._kube = kube
        self._node = node
        self._clock = clock
        self._throttle = Throttle(interval, counted_at=clock())
        self._create_at = 0.0
        self._write_at = 0.0
        self._written: tuple[str, GpuNodeStatus, float] | None = None
        """(the object's uid, status, when): a cache that lags behind our own write does not show it yet."""
        self.failing_since: float | None = None
        """The time since which no write that was tried has succeeded; None: the last one did, or nothing differs."""

    async def create(self) -> None:
        """Errors are logged. Call it at every tick: it makes at most one attempt in RETRY_SECONDS."""
        if self._clock() < self._create_at:
            return
        self._create_at = self._clock() + RETRY_SECONDS
        try:
            node = await self._kube.get(NODES, self._node)
            body = {**_identity(self._node), "metadata": {"name": self._node, "ownerReferences": [_owner(node)]}}
            await self._kube.apply(GPU_NODES, self._node, body, manager=MANAGER)
        except API_ERRORS as error:
            LOG.warning("GpuNode %s not created: %s", self._node, error)

    async def write(self, status: GpuNodeStatus, cached: GpuNode) -> None:
        """Writes `status` if it differs from `cached` and a write is due. Errors are logged and retried later."""
        now, current = self._clock(), own_part(cached.status, status)
        if status == current or self._just_written(cached.metadata.uid, status, now):
            self.failing_since = None
            return
        if now < self._write_at or self._throttle.wait(now, urgent=urgent(status, current)) > 0:
            return
        self._throttle.wrote(now)
        body = {**_identity(self._node), "metadata": {"name": self._node}, "status": status.wire()}
        try:
            await self._kube.apply(GPU_NODES, self._node, body, manager=MANAGER, subresource="status")
            self._written = (cached.metadata.uid, status, now)
            self.failing_since = None
        except API_ERRORS as error:
            self.failing_since = now if self.failing_since is None else self.failing_since
            self._write_at = now + RETRY_SECONDS
            LOG.warning("status of GpuNode %s not written: %s", self._node, error)

    def _just_written(self, uid: str, status: GpuNodeStatus, now: float) -> bool:
        if self._written is None:
            return False
        written_uid, written, at = self._written
        return uid == written_uid and status == written and now - at < CACHE_LAG_SECONDS


class StatusReporter:
    """`reported`: whether the API server has taken a status once with all that is known at the start.

    `unreported_since`: since when the API server takes no status of this agent; None: it has the latest, or that waits
    its turn.
    """

    def __init__(
        self,
        settings: AgentSettings,
        readings: Readings,
        latest: LatestDecisions,
        observer: Observer,
        delivery: ClaimDelivery,
        writer: GpuNodeWriter,
    ) -> None:
        self.reported = False
        self.unreported_since: float | None = None
        self._settings = settings
        self._readings = readings
        self._latest = latest
        self._observer = observer
        self._delivery = delivery
        self._writer = writer

    async def report(self) -> None:
        """Writes the ResourceSlice and the GpuNode's status where they differ; creates the GpuNode."""
        readings, decisions = self._readings, self._latest.decisions
        if readings.cache.informed and decisions is not None:
            await self._delivery.publish(readings.inventory.driver, by_cdi=readings.devices.by_cdi)
        node = readings.cache.gpu_node()
        if node is None:
            if readings.cache.nodes.synced.is_set():
                await self._writer.create()
            return
        if decisions is None:
            return
        await self._writer.write(build(self._facts(decisions), node.status), node)
        self.unreported_since = self._writer.failing_since
        known = readings.cache.complete and decisions.given.kubelet is not None
        if known and self._writer.failing_since is None:
            self.reported = True

    def _facts(self, decisions: Decisions) -> NodeFacts:
        readings, observer, given = self._readings, self._observer, decisions.given
        now, root = datetime.now(UTC), self._settings.root
        claims = given.kubelet.nvidia_claims if given.kubelet is not None else frozenset()
        return NodeFacts(
            generation=given.generation,
            agent_version=RELEASE,
            simulated=readings.inventory.simulated,
            modes=self._settings.compute_mode_policy,
            driver=readings.inventory.driver,
            views=readings.inventory.views,
            original_modes={uuid: original_mode(gpu_dir(root, uuid)) for uuid in readings.inventory.views},
            gpus=decisions.gpus.values(),
            held=_held(given),
            holding=readings.holding(given.kubelet),
            assignments=given.assignments or (),
            pods=readings.cache.known_pods(),
            findings=observer.usage.findings(),
            borrowers=observer.shortages.borrowers(),
            short=observer.shortages.short() if readings.lends else None,
            reserved=observer.reserved,
            places=readings.gpu_places(),
            unused=None if observer.unused is None else observer.unused.published(now),
            pre_stop_mounted=observer.usage.pre_stop_mounted(),
            nvml_error=readings.inventory.error,
            driver_error=readings.devices.problem() or readings.devices.daemon_problem(),
            kubelet_error=readings.kubelet.error or readings.kubelet.forgotten,
            nvidia_claims=claims,
            offered_by_nvidia=self._offered_by_nvidia(given, claimed=bool(claims)),
            slice_error=self._delivery.refused,
            now=format_timestamp(now),
        )

    def _offered_by_nvidia(self, given: DecisionInput, *, claimed: bool) -> Sequence[str]:
        own = {resource for resource, _ in self._readings.directories.whole_names}
        by_claims = claimed or is_registered(self._settings.kubelet_dir, names.NVIDIA_DRA_DRIVER)
        return offered_by_nvidia(given.kubelet.allocatable_ids if given.kubelet else (), own, by_claims=by_claims)


def snapshot(
    readings: Readings,
    gpus: Mapping[Uuid, GpuDecision],
    observer: Observer,
    attached: Callable[[Uuid, Iterable[tuple[int, int]]], Mapping[int, float]],
    activity: Sequence[ContainerActivity],
    now: float,
) -> NodeSnapshot:
    """The latest values, for metrics: later ones replace them and change nothing in a snapshot. `attached`: when
    processes of a GPU attached, by PID; asked with PIDs and start times in ticks. `now`: CLOCK_BOOTTIME seconds.
    """
    view, driver, unused = readings.kubelet.view, readings.inventory.driver, observer.unused
    return NodeSnapshot(
        now=now,
        simulated=readings.inventory.simulated,
        views=readings.inventory.views,
        client_ceiling=driver.client_ceiling if driver else None,
        decisions=gpus,
        states={uuid: item.state for uuid, item in readings.directories.shared.items()},
        brokers={uuid: item.broker for uuid, item in readings.directories.shared.items()},
        observed=observer.observed,
        attached={uuid: attached(uuid, _identities(reading)) for uuid, reading in observer.observed.items()},
        activity=activity,
        charged=observer.charges.totals(now),
        findings=observer.usage.findings() or (),
        borrowers=observer.shortages.borrowers() or (),
        shortages=observer.shortages.latest,
        unused={item.part: _seconds_since(item.since) for item in unused.longest_first} if unused is not None else {},
        nvml_error=readings.inventory.error,
        kubelet_error=readings.kubelet.error,
        kubelet_read_at=view.started if view else None,
    )


def _identities(reading: Reading) -> Iterator[tuple[int, int]]:
    """PID and start time, in ticks, of each process."""
    return ((process.pid, process.started) for usage in reading.usages for process in usage.processes)


def _seconds_since(moment: datetime) -> float:
    """The time since then, and never below 0, however clocks are set."""
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())


def _held(given: DecisionInput) -> dict[ShareGpu, Slots] | None:
    return None if given.kubelet is None else merged_holdings(given.kubelet.held, given.pending)


def _identity(node: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "metadata": {"name": node}}


def _owner(node: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
