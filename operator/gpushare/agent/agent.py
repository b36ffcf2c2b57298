"""The node agent: one process per node that reads, decides purely, and applies what differs.

Guarantees: a slot is held from Allocate until a reading of the kubelet shows that its pod has ended, and free with that
reading. When the agent ends, gates and MPS daemons stay as they are, so clients do not notice.

`Agent.loops` lists everything that runs. Loops write `Readings`, the tick makes `Decisions` of them, and everything
else reads the two.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.aio import periodic
from gpushare.agent.aio.periodic import Loop
from gpushare.agent.attach.arrivals import BrokerFiles
from gpushare.agent.dra.claims import ClaimSources
from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.dra.prepared import PreparedClaims
from gpushare.agent.gather import DecisionGatherer
from gpushare.agent.gpus import cdi
from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.gpus.xids import XidWatch
from gpushare.agent.health import AgentHealth
from gpushare.agent.incidents import IncidentReporter
from gpushare.agent.kubelet.mps_pods import MpsDevices
from gpushare.agent.kubelet.plugins import DevicePlugins, PluginFactory
from gpushare.agent.kubelet.service import DeviceKind
from gpushare.agent.kubelet.slots import AllocationSources, SlotDevices
from gpushare.agent.kubelet.whole_gpus import WholeDevices
from gpushare.agent.node_cache import NodeCache
from gpushare.agent.observation import APART, Observer
from gpushare.agent.observe.violations import UsageMonitor
from gpushare.agent.podresources.holdings import Slots, merged_holdings
from gpushare.agent.podresources.reader import KubeletReader, PodResourcesSource
from gpushare.agent.readings import Readings, Wakeups
from gpushare.agent.reconcile.assignments import GpuPlan
from gpushare.agent.reconcile.daemon_files import DaemonChanges
from gpushare.agent.reconcile.decision import LatestDecisions
from gpushare.agent.reconcile.directories import GpuDirectories
from gpushare.agent.reconcile.gates import Gates
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.reporting import GpuNodeWriter, StatusReporter, snapshot
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.heartbeat import Heartbeat
from gpushare.agent.status.meters import NodeMeters
from gpushare.agent.status.metrics import NodeSnapshot
from gpushare.agent.terminate.departure_guard import DepartureGuard
from gpushare.agent.terminate.enforcement import ViolationEnforcer
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.faulted import FaultedClientReaper, GpuFault, faults_of
from gpushare.agent.terminate.idle_places import IdlePlaces
from gpushare.agent.terminate.kubelet_kills import KubeletKillWatcher, StopWatcher
from gpushare.agent.terminate.max_wait import MaxWaitEnforcer
from gpushare.agent.terminate.shortage import ShortageMonitor
from gpushare.agent.tick import Tick
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.client import API_ERRORS, NODES, Kube
from gpushare.kube.events.recorder import EventRecorder
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import DaemonControl
from gpushare.mps.files import ModelFiles
from gpushare.nvml.types import Nvml
from gpushare.process import heap

LOG = logging.getLogger(__name__)
TRIM_SECONDS = 60.0
"""What is free in the heap is given back so often: most of it was needed to start, and for the first lists."""


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Everything outside of the process that the agent talks to. `run` makes the real ones, tests their own."""

    kube: Kube
    nvml: Nvml
    pod_resources: PodResourcesSource
    plugins: PluginFactory
    control: Callable[[Uuid], DaemonControl]
    """The control program of a GPU's MPS daemon."""
    recorder: EventRecorder
    proc: Path = Path("/proc")


class Agent:
    def __init__(
        self,
        settings: AgentSettings,
        interfaces: Interfaces,
        meters: NodeMeters,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        kube, node, proc = interfaces.kube, settings.node, interfaces.proc
        self._kube = kube
        self._settings = settings
        self._meters = meters
        self._clock = clock
        self._wakeups = wakeups = Wakeups()
        self._files = ModelFiles()
        self._daemon_changes = DaemonChanges(self._files)
        self.latest = latest = LatestDecisions()
        self.readings = readings = self._read_by(interfaces)

        self._gate = cdi.Gate(settings.cdi_dir)
        self.plugins = DevicePlugins(interfaces.plugins, self._kinds)
        self._delivery = ClaimDelivery(kube, settings.kubelet_dir, self._claim_sources(), clock)
        self._lifecycle = Lifecycle(
            settings.root, readings.inventory, self._gate, clock, self._gpu_changed, proc, settings.compute_mode_policy
        )
        gatherer = DecisionGatherer(settings, readings, self.plugins, clock, wakeups.gpus.set)
        gates = Gates(self._gate, readings.devices)
        self.tick = Tick(
            settings, readings, gatherer, gates, self._lifecycle, self.plugins, self._delivery, latest, clock, wakeups
        )

        record, control = interfaces.recorder.record, interfaces.control
        executor = TerminationExecutor(settings.root, control, record, clock, proc, meters.count_attempt)
        self.observer = self._observing(executor, interfaces)
        writer = GpuNodeWriter(kube, node, clock, settings.intervals.status)
        self.status = StatusReporter(settings, readings, latest, self.observer, self._delivery, writer)
        self.health = AgentHealth(self.tick, self.status, clock)
        gpu_node = readings.cache.raw_gpu_node
        self._heartbeat = Heartbeat(
            kube, settings.namespace, node, settings.pod, clock, gpu_node, self.health.not_working
        )
        self.incidents = IncidentReporter(
            settings, readings, latest, self.observer, self._files, wakeups, clock, record, proc, meters.count_refused
        )
        self._xids = XidWatch(interfaces.nvml, self.incidents.xid)
        self._end_clients(executor, interfaces)

    def _read_by(self, interfaces: Interfaces) -> Readings:
        settings, clock, wakeups = self._settings, self._clock, self._wakeups
        cache = NodeCache(interfaces.kube, settings.node, wakeups.tick.set)
        cache.follow_pods(wakeups.kubelet.set)
        directories = GpuDirectories(settings.root, self._files)
        return Readings(
            cache,
            Inventory(interfaces.nvml, clock, interfaces.proc),
            Devices(settings),
            KubeletReader(
                interfaces.pod_resources, clock, cache.known_pods, directories.read_whole_names, directories.granted
            ),
            directories,
            PreparedClaims(settings.cdi_dir),
        )

    def _observing(self, executor: TerminationExecutor, interfaces: Interfaces) -> Observer:
        every, clock, proc = self._settings.intervals, self._clock, interfaces.proc
        apart = every.observe * APART
        recorder = interfaces.recorder
        enforcer = ViolationEnforcer(self._settings.node, executor, recorder, clock)
        usage = UsageMonitor(clock, enforcer, proc, every.clear, apart)
        shortages = ShortageMonitor(executor, recorder, clock, every.clear, apart)
        idle = IdlePlaces(executor, recorder)
        return Observer(self.readings, self.latest, usage, shortages, idle, clock)

    def _end_clients(self, executor: TerminationExecutor, interfaces: Interfaces) -> None:
        """Everything that ends clients but the observer, which has its own loop."""
        kube, nvml, proc = interfaces.kube, interfaces.nvml, interfaces.proc
        node, record, pods = self._settings.node, interfaces.recorder.record, self.readings.cache.pods_by_cgroup_uid
        self._departures = DepartureGuard(nvml, pods, self._taken, executor, proc=proc, served=self.readings.served)
        self._kills = KubeletKillWatcher(kube, node, pods, self._departures.add_kill)
        brokers, shared = BrokerFiles(self._files), self.readings.directories
        self._stops = StopWatcher(
            lambda: brokers.changed(item.directory for item in shared.shared.values()),
            pods,
            lambda: self.readings.parts()[0],
            self._departures.add_stop,
            self._clock,
        )
        self._expired = MaxWaitEnforcer(nvml, self._expired_gpus, pods, executor, record, proc)
        self._faulted = FaultedClientReaper(node, self._faults, pods, executor, record, self._clock, proc)
        self.readings.cache.follow_pods(self._departures.pods_changed)
        self.readings.cache.follow_pods(self._kills.pods_changed)

    def loops(self) -> tuple[Loop, ...]:
        """Everything that runs: name, work, seconds between two turns, and the event that starts one earlier."""
        readings, wakeups, every = self.readings, self._wakeups, self._settings.intervals
        return (
            Loop("nodes", readings.cache.nodes.run),
            Loop("shares", readings.cache.share_objects.run),
            Loop("pods", readings.cache.pods.run),
            Loop("departures", self._departures.run),
            Loop("kubelet_kills", self._kills.run),
            Loop("stopping_containers", self._stops.follow, every.files),
            Loop("max_wait", self._expired.run),
            Loop("faulted_clients", self._faulted.run),
            Loop("xids", self._xids.run),
            Loop("poll_gpus", self._poll_gpus, every.gpus, wakeups.gpus, timed=True),
            Loop("poll_kubelet", self._poll_kubelet, every.kubelet, wakeups.kubelet, timed=True),
            Loop("observe", self.observer.observe, every.observe, wakeups.observe, timed=True),
            Loop("scan", readings.devices.scan, every.driver, timed=True),
            Loop("tick", self.tick.run, every.tick, wakeups.tick, timed=True),
            Loop("report", self.status.report, every.report, wakeups.report, timed=True),
            Loop("follow_daemons", self._follow_daemons, every.files),
            Loop("incidents", self.incidents.follow, every.files),
            Loop("follow_arrivals", self.incidents.follow_arrivals, every.driver, self.incidents.arrivals_due),
            Loop("prepared_claims", self._delivery.follow_claims, every.kubelet),
            Loop("heartbeat", self._heartbeat.renew, every.report),
            Loop("trim", heap.trim, TRIM_SECONDS),
        )

    async def run(self) -> None:
        """Runs until cancelled. Any exception but OSError is a bug and ends the agent."""
        loops = self.loops()
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in (loop for loop in loops if loop.seconds is None):
                    tasks.create_task(periodic.run(loop), name=loop.name)
                await self._read_all()
                for loop in (loop for loop in loops if loop.seconds is not None):
                    tasks.create_task(periodic.run(loop, self._meters.observe_turn, self._clock), name=loop.name)
        finally:
            await self._lifecycle.close()
            await self.plugins.hand_over()
            await self._delivery.close()

    async def _read_all(self) -> None:
        """The readings that every decision needs. The API server may be down: GPUs on disk are kept, not offered."""
        await self._find_runtime()
        self._remove_unused_fronts()
        await self.readings.devices.scan()
        await self.readings.inventory.poll()
        await self.readings.kubelet.poll()

    def _remove_unused_fronts(self) -> None:
        """Removes them before any spec is written: the specs of the agent before name what it delivered."""
        try:
            self.readings.devices.remove_unused_fronts(self._gate.text())
        except (OSError, ValueError) as error:
            LOG.warning("front libraries that no CDI spec names may be left: %s", error)

    async def _find_runtime(self) -> None:
        mode, runtime = self._settings.cdi, ""
        while mode == "Auto" and not runtime:
            try:
                node = await self._kube.get(NODES, self._settings.node)
                runtime = node["status"]["nodeInfo"]["containerRuntimeVersion"]
            except (*API_ERRORS, KeyError) as error:
                LOG.warning("the node's container runtime is not known yet: %s", error)
                self.tick.still_starting()
                await asyncio.sleep(self._settings.intervals.kubelet)
        self.readings.devices.by_cdi = cdi.used(mode, runtime)
        LOG.info("CDI %s: containers get edits %s", mode, "by CDI" if self.readings.devices.by_cdi else "from Allocate")

    async def _poll_gpus(self) -> None:
        await self.readings.inventory.poll()
        self._wakeups.tick.set()
        self._wakeups.observe.set()

    async def _poll_kubelet(self) -> None:
        kubelet = self.readings.kubelet
        previous = kubelet.view
        await kubelet.poll()
        if kubelet.view is not None and kubelet.view is not previous:
            self._wakeups.tick.set()

    async def _follow_daemons(self) -> None:
        """Starts a tick at once where a supervisor or a broker reports something between two ticks."""
        if self._daemon_changes.any(item.directory for item in self.readings.directories.shared.values()):
            self._wakeups.tick.set()

    def _gpu_changed(self) -> None:
        self._wakeups.gpus.set()
        self._wakeups.tick.set()

    # What others ask for, as it is at that moment

    def _kinds(self, resource: str) -> tuple[DeviceKind, ...]:
        """The kinds of a resource's devices. A share of whole GPUs may follow one of slots that had the same name."""
        readings = self.readings
        if resource == names.MPS_RESOURCE:
            return (MpsDevices(readings.devices, lambda: readings.inventory.views),)
        sources = AllocationSources(
            node=self._settings.node,
            devices=readings.devices,
            views=lambda: readings.inventory.views,
            decisions=lambda: self.latest.gpus,
            shares=lambda: readings.cache.shares,
            held=self.held,
            read_kubelet=self._wakeups.kubelet.set,
        )
        share, whole = names.share_of_resource(resource), WholeDevices(resource, sources)
        return (whole,) if share is None else (SlotDevices(share, sources), whole)

    def _claim_sources(self) -> ClaimSources:
        readings = self.readings
        return ClaimSources(
            node=self._settings.node,
            claims=readings.claims,
            decisions=lambda: self.latest.gpus,
            by_cdi=lambda: readings.devices.by_cdi,
            used=readings.claims_used,
            changed=self._wakeups.tick.set,
        )

    def held(self, share: ShareName, uuid: Uuid) -> Slots:
        """Slots of the share that containers hold on the GPU, with pending ones."""
        view, whole = self.readings.kubelet.view, self.readings.directories.whole_names
        held = merged_holdings(view.held if view else {}, self.plugins.pending(whole))
        return held.get((share, uuid), frozenset())

    def _taken(self) -> list[Uuid]:
        """GPUs that have a daemon.json."""
        return list(self.readings.directories.shared)

    def _expired_gpus(self) -> list[GpuPlan]:
        """GPUs taken whose share's maxWait is over; none while this node's pods are not known."""
        if not self.readings.cache.pods.synced.is_set():
            return []  # the clients' pods could not be told
        shared = (gpu for gpu in self.latest.gpus.values() if gpu.files is not None)
        return [gpu.plan for gpu in shared if gpu.plan.ends_clients]

    def _faults(self) -> list[GpuFault]:
        """GPUs whose server waits for faulted clients, of known shares."""
        shared = self.readings.directories.shared.items()
        states = {uuid: item.state for uuid, item in shared if item.state is not None}
        return faults_of(states, self.readings.cache.shares, self._clock())

    def snapshot(self) -> NodeSnapshot:
        """The latest values, for metrics."""
        return snapshot(
            self.readings,
            self.latest.gpus,
            self.observer,
            self.incidents.attached,
            self.incidents.activity(),
            self._clock(),
        )
