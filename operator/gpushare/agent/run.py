"""The agent with its real surroundings: NVML or its simulation, the kubelet's sockets, probes, departures."""

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpushare.agent import probes
from gpushare.agent.agent import Agent
from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.faults import downtime as absence
from gpushare.agent.faults.downtime import Handover
from gpushare.agent.faults.reports import FaultReports
from gpushare.agent.gpus import driver
from gpushare.agent.gpus.xids import XidWatch
from gpushare.agent.kubelet.allocation_lock import AllocationLock, LockedPodResources
from gpushare.agent.kubelet.duplicates import DuplicateAllocations
from gpushare.agent.kubelet.plugin import DevicePlugin, Hooks
from gpushare.agent.kubelet.podresources import PodResources
from gpushare.agent.plugins import PluginFactory
from gpushare.agent.settings import AgentSettings
from gpushare.agent.state import AgentState
from gpushare.agent.status.meters import MeteredHooks, NodeMeters, export
from gpushare.agent.status.metrics import WITHOUT_DRIVER
from gpushare.agent.termination.after_fault import FaultedClientReaper
from gpushare.agent.termination.departure_guard import DepartureGuard
from gpushare.agent.termination.kubelet_kills import KubeletKillWatcher
from gpushare.agent.termination.max_wait import MaxWaitEnforcer
from gpushare.agent.termination.terminate import ClientTerminator
from gpushare.agent.usage.enforcement import ViolationEnforcer
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Kube
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.metrics.endpoint import exposed
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlProgram
from gpushare.mps.layout import gpu_dir
from gpushare.nvml.types import Nvml, NvmlError, Xid
from gpushare.simulation import bin_dir

LOG = logging.getLogger(__name__)
DRIVER_RETRY_SECONDS = 10.0
CONTROL_SECONDS = 2.0
"""A control command takes some 20 ms; a wedged daemon must not use up a pod's grace period."""
REPORT_SECONDS = 1.0
DRIVER_LOAD_SECONDS = 60.0
"""Initialising a GPU that nothing kept awake takes seconds each."""


async def run(settings: AgentSettings, kube: Kube) -> None:
    """Runs until cancelled."""
    agent: Agent | None = None
    checks: dict[str, probes.Check] = {
        "/healthz": lambda: agent.unwell() if agent else None,
        "/readyz": lambda: agent.unready() if agent else "waiting for the NVIDIA driver",
    }
    exported, meters = export(lambda: agent.known.snapshot() if agent else WITHOUT_DRIVER)
    server = await probes.serve(settings.probe_port, checks)
    async with server, exposed(settings.metrics_port, exported):
        nvml = await _open_nvml(settings)
        endings = ClientTerminator(settings.root, _controls(settings), attempted=meters.count_attempt)
        announcer = EventRecorder(kube, "gpushare-agent", settings.pod)
        enforcement = ViolationEnforcer(settings.node, endings, _controls(settings), announcer, boot_clock)
        turns = AllocationLock(boot_clock)
        agent = Agent(
            settings,
            kube,
            nvml,
            LockedPodResources(PodResources(settings.pod_resources), turns),
            _plugins(settings, meters, turns),
            enforcement,
            turned=meters.observe_turn,
        )
        known = agent.known
        departure = DepartureGuard(
            nvml,
            pods=known.pods_by_uid,
            gpus=known.taken,
            terminator=endings,
            record=announcer.record,
        )
        expiry = MaxWaitEnforcer(nvml, known.expired, known.pods_by_uid, endings, announcer.record)
        reports = FaultReports(settings.node)
        handover = Handover(settings.root)
        lingering = FaultedClientReaper(settings.node, known.faults, known.pods_by_uid, announcer.record)
        agent.follow_pods(departure.poke)
        kill_events = KubeletKillWatcher(kube, settings.node, known.pods_by_uid, departure.add_kill)
        agent.follow_pods(kill_events.poke)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.run())
            tasks.create_task(departure.run())
            tasks.create_task(kill_events.run())
            tasks.create_task(expiry.run())
            tasks.create_task(lingering.run())
            tasks.create_task(_watch_xids(nvml, reports, agent))
            tasks.create_task(_report(known, reports, announcer))
            tasks.create_task(_hand_over(settings.node, known, handover, announcer))


async def _watch_xids(nvml: Nvml, reports: FaultReports, agent: Agent) -> None:
    """Runs until cancelled."""

    def seen(xid: Xid) -> None:
        reports.add_xid(xid, boot_clock())
        agent.look_at_kubelet()  # whoever holds nothing now did not cause it

    await XidWatch(nvml, seen).run()


async def _report(known: AgentState, reports: FaultReports, announcer: EventRecorder) -> None:
    """Faults, and slots given twice. Runs until cancelled."""
    doubled = DuplicateAllocations()
    while True:
        found = reports.update(known.fault_looks(), boot_clock())
        if known.kubelet.view is not None:
            found += doubled.look(known.kubelet.view, known.pods.objects.values())
        for news in found:
            announcer.record(news)
        await asyncio.sleep(REPORT_SECONDS)


async def _hand_over(node: str, known: AgentState, handover: Handover, announcer: EventRecorder) -> None:
    """Runs until cancelled. Without the pods of now nothing is compared, and nothing of an earlier agent's replaced."""
    await known.pods.synced.wait()
    while True:
        now = time.time()
        for uuid, state in known.supervised().items():
            before = handover.take(uuid)
            if before is not None:
                ended = handover.ended(uuid, before.clients)
                pods = pods_by_cgroup_uid(known.pods.objects.values())
                for news in absence.downtime_events(node, uuid, before, state, ended, pods, now):
                    LOG.warning("%s", news.note)
                    announcer.record(news)
            handover.save(uuid, state, known.observed.get(uuid), now)
        await asyncio.sleep(REPORT_SECONDS)


def _plugins(settings: AgentSettings, meters: NodeMeters, turns: AllocationLock) -> PluginFactory:
    """Slots are timed; our own MPS pods are not what users wait for."""

    def plugin(resource: str, hooks: Hooks) -> DevicePlugin:
        metered = hooks if resource == names.MPS_RESOURCE else MeteredHooks(hooks, meters)
        return DevicePlugin(resource, settings.kubelet_dir, metered, boot_clock, turns)

    return plugin


def _controls(settings: AgentSettings) -> Callable[[Uuid], ControlProgram]:
    """The control program of a GPU's daemon: the driver's own, or the simulated one."""

    def control(uuid: Uuid) -> ControlProgram:
        simulated = settings.simulation_dir is not None
        programs = bin_dir() if simulated else driver.control_program_dir(settings.driver_mount)
        directory = gpu_dir(settings.root, uuid)
        return ControlProgram(programs, directory.pipe, directory.log, CONTROL_SECONDS)

    return control


async def _open_nvml(settings: AgentSettings) -> Nvml:
    """Waits for the driver: a driver container may still be building it."""
    if settings.simulation_dir is not None:
        from gpushare.simulation.nvml import SimulatedNvml

        return SimulatedNvml(Path(settings.simulation_dir))
    lane = BlockingCaller("NVML initialisation", DRIVER_LOAD_SECONDS)
    told = ""
    while True:
        try:
            return await lane.call(_load_nvml, settings.driver_mount)
        except (NvmlError, HungError, OSError) as error:
            if str(error) != told:
                LOG.warning("waiting for the NVIDIA driver: %s", error)
            told = str(error)
            await asyncio.sleep(DRIVER_RETRY_SECONDS)


def _load_nvml(mount: Path) -> Nvml:
    from gpushare.nvml.real import PynvmlNvml

    library = driver.nvml_library(mount)
    if library is not None:
        # Loaded by its path once, it is what NVIDIA's binding finds when it asks for the bare name.
        ctypes.CDLL(str(library))
    return PynvmlNvml()
