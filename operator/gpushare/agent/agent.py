"""The node agent: one process per node that reads, decides purely, and applies what differs.

Guarantees: a slot is held from Allocate until a reading of the kubelet shows that its pod has ended, and free with that
reading. When the agent ends, gates and MPS daemons stay as they are, so clients do not notice.

`AgentState` owns the state, `Agent.loops` lists everything that runs.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.aio import periodic
from gpushare.agent.aio.periodic import Loop
from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.gpus import cdi
from gpushare.agent.gpus.xids import XidWatch
from gpushare.agent.incidents import IncidentReporter
from gpushare.agent.kubelet.plugins import PluginFactory
from gpushare.agent.podresources.reader import PodResourcesSource
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.reporting import GpuNodeWriter, StatusReporter
from gpushare.agent.settings import AgentSettings
from gpushare.agent.state import APART, AgentState
from gpushare.agent.status.heartbeat import Heartbeat
from gpushare.agent.status.meters import NodeMeters
from gpushare.agent.terminate.after_fault import FaultedClientReaper
from gpushare.agent.terminate.departure_guard import DepartureGuard
from gpushare.agent.terminate.enforcement import Recorder, ViolationEnforcer
from gpushare.agent.terminate.kubelet_kills import KubeletKillWatcher
from gpushare.agent.terminate.max_wait import MaxWaitEnforcer
from gpushare.agent.terminate.shortage import ShortageMonitor
from gpushare.agent.terminate.terminate import ClientTerminator
from gpushare.agent.tick import Tick
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import API_ERRORS, NODES, Kube
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import DaemonControl
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
    recorder: Recorder
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
        kube, nvml, control, proc = interfaces.kube, interfaces.nvml, interfaces.control, interfaces.proc
        recorder, node = interfaces.recorder, settings.node
        terminator = ClientTerminator(settings.root, control, proc, meters.count_attempt)
        enforcer = ViolationEnforcer(node, terminator, control, recorder, clock, proc)
        every = settings.intervals
        shortages = ShortageMonitor(terminator, recorder, clock, every.clear, every.observe * APART, proc)
        self.state = state = AgentState(
            settings, kube, nvml, interfaces.pod_resources, interfaces.plugins, enforcer, shortages, clock, proc
        )
        gate = cdi.Gate(settings.cdi_dir)
        self._kube = kube
        self._gate = gate
        self._settings = settings
        self._meters = meters
        self._delivery = ClaimDelivery(kube, settings.kubelet_dir, state, clock)
        self._lifecycle = Lifecycle(
            settings.root, state.inventory, gate, clock, self._gpu_changed, proc, settings.compute_mode_policy
        )
        self._tick = Tick(state, gate, self._lifecycle, self._delivery, meters)
        writer = GpuNodeWriter(kube, node, clock, settings.intervals.status)
        self._status = StatusReporter(state, self._delivery, writer, self._lifecycle)
        self._heartbeat = Heartbeat(
            kube, settings.namespace, node, settings.pod, clock, state.cache.raw_gpu_node, state.not_working
        )
        self._incidents = IncidentReporter(state, recorder.record, proc, meters.count_refused)
        self._xids = XidWatch(nvml, self._incidents.xid)
        self._departures = DepartureGuard(
            nvml, state.cache.pods_by_uid, state.taken, terminator, recorder.record, proc=proc
        )
        self._kills = KubeletKillWatcher(kube, node, state.cache.pods_by_uid, self._departures.add_kill)
        self._expired = MaxWaitEnforcer(nvml, state.expired, state.cache.pods_by_uid, terminator, recorder.record, proc)
        self._faulted = FaultedClientReaper(node, state.faults, state.cache.pods_by_uid, recorder.record, clock, proc)
        state.cache.follow_pods(self._departures.poke)
        state.cache.follow_pods(self._kills.poke)

    def loops(self) -> tuple[Loop, ...]:
        """Everything that runs: name, work, seconds between two turns, and the event that starts one earlier."""
        state, every = self.state, self._settings.intervals
        return (
            Loop("nodes", state.cache.nodes.run),
            Loop("shares", state.cache.share_objects.run),
            Loop("pods", state.cache.pods.run),
            Loop("departures", self._departures.run),
            Loop("kubelet_kills", self._kills.run),
            Loop("max_wait", self._expired.run),
            Loop("faulted_clients", self._faulted.run),
            Loop("xids", self._xids.run),
            Loop("poll_gpus", state.poll_gpus, every.gpus, state.gpus_due, timed=True),
            Loop("poll_kubelet", state.poll_kubelet, every.kubelet, state.kubelet_due, timed=True),
            Loop("observe", state.observe, every.observe, state.observe_due, timed=True),
            Loop("scan", state.devices.scan, every.driver, timed=True),
            Loop("tick", self._tick.run, every.tick, state.tick_due, timed=True),
            Loop("report", self._status.report, every.report, state.report_due, timed=True),
            Loop("follow_files", self._follow_files, every.files),
            Loop("follow_arrivals", self._incidents.follow_arrivals, every.driver, self._incidents.arrivals_due),
            Loop("gone_claims", self._delivery.give_up_gone, every.kubelet),
            Loop("heartbeat", self._heartbeat.renew, every.report),
            Loop("report_incidents", self._incidents.report, every.report),
            Loop("hand_over", self._incidents.hand_over, every.report),
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
                    tasks.create_task(periodic.run(loop, self._meters.observe_turn, self.state.clock), name=loop.name)
        finally:
            await self._lifecycle.close()
            await self.state.plugins.leave()
            await self._delivery.close()

    async def _read_all(self) -> None:
        """The readings that every decision needs. The API server may be down: GPUs on disk are kept, not offered."""
        await self._find_runtime()
        self._remove_unused_fronts()
        await self.state.devices.scan()
        await self.state.inventory.poll()
        await self.state.kubelet.poll()

    def _remove_unused_fronts(self) -> None:
        """Before any spec is written: those of the agent before name what it delivered."""
        try:
            self.state.devices.remove_unused_fronts(self._gate.text())
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
                self.state.still_starting()
                await asyncio.sleep(self._settings.intervals.kubelet)
        self.state.devices.by_cdi = cdi.used(mode, runtime)
        LOG.info("CDI %s: containers get edits %s", mode, "by CDI" if self.state.devices.by_cdi else "from Allocate")

    async def _follow_files(self) -> None:
        """What supervisors and attach brokers report, between two ticks."""
        self.state.follow_daemons()
        self._incidents.read_brokers()

    def _gpu_changed(self) -> None:
        self.state.gpus_due.set()
        self.state.tick_due.set()
