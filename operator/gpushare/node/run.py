"""The agent with its real surroundings: NVML or its simulation, the kubelet's sockets, probes, departures."""

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.kube.announcer import Announcer
from gpushare.kube.client import Kube
from gpushare.metrics.endpoint import exposed
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlProgram
from gpushare.mps.layout import gpu_dir
from gpushare.node import absence, driver, probes
from gpushare.node.agent import Agent
from gpushare.node.departure import Departure
from gpushare.node.doubled import Doubled
from gpushare.node.ending import Endings
from gpushare.node.enforcement import Enforcement
from gpushare.node.expiry import Expiry
from gpushare.node.fault_reports import FaultReports
from gpushare.node.handover import Handover
from gpushare.node.kill_events import KillEvents
from gpushare.node.knowledge import Knowledge
from gpushare.node.lane import HungError, Lane
from gpushare.node.lingering import Lingering
from gpushare.node.meters import MeteredHooks, NodeMeters, export
from gpushare.node.metrics import WITHOUT_DRIVER
from gpushare.node.plugin import DevicePlugin, Hooks
from gpushare.node.podresources import PodResources
from gpushare.node.serving import PluginFactory
from gpushare.node.settings import AgentSettings
from gpushare.node.turns import SourceInTurn, Turns
from gpushare.node.usage import pods_by_cgroup_uid
from gpushare.node.xids import XidWatch
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
        endings = Endings(settings.root, _controls(settings), told=meters.told)
        announcer = Announcer(kube, "gpushare-agent", settings.pod)
        enforcement = Enforcement(settings.node, endings, _controls(settings), announcer, boot_clock)
        turns = Turns(boot_clock)
        agent = Agent(
            settings,
            kube,
            nvml,
            SourceInTurn(PodResources(settings.pod_resources), turns),
            _plugins(settings, meters, turns),
            enforcement,
            turned=meters.turn,
        )
        known = agent.known
        departure = Departure(
            nvml,
            pods=known.pods_by_uid,
            gpus=known.taken,
            endings=endings,
            tell=announcer.tell,
        )
        expiry = Expiry(nvml, known.expired, known.pods_by_uid, endings, announcer.tell)
        reports = FaultReports(settings.node)
        handover = Handover(settings.root)
        lingering = Lingering(settings.node, known.faults, known.pods_by_uid, announcer.tell)
        agent.follow_pods(departure.poke)
        kill_events = KillEvents(kube, settings.node, known.pods_by_uid, departure.killing)
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
        reports.xid(xid, boot_clock())
        agent.look_at_kubelet()  # whoever holds nothing now did not cause it

    await XidWatch(nvml, seen).run()


async def _report(known: Knowledge, reports: FaultReports, announcer: Announcer) -> None:
    """Faults, and slots given twice. Runs until cancelled."""
    doubled = Doubled()
    while True:
        found = reports.look(known.fault_looks(), boot_clock())
        if known.kubelet.view is not None:
            found += doubled.look(known.kubelet.view, known.pods.objects.values())
        for news in found:
            announcer.tell(news)
        await asyncio.sleep(REPORT_SECONDS)


async def _hand_over(node: str, known: Knowledge, handover: Handover, announcer: Announcer) -> None:
    """Runs until cancelled. Without the pods of now nothing is compared, and nothing of an earlier agent's replaced."""
    await known.pods.synced.wait()
    while True:
        now = time.time()
        for uuid, state in known.supervised().items():
            before = handover.take(uuid)
            if before is not None:
                ended = handover.ended(uuid, before.clients)
                pods = pods_by_cgroup_uid(known.pods.objects.values())
                for news in absence.told(node, uuid, before, state, ended, pods, now):
                    LOG.warning("%s", news.note)
                    announcer.tell(news)
            handover.note(uuid, state, known.observed.get(uuid), now)
        await asyncio.sleep(REPORT_SECONDS)


def _plugins(settings: AgentSettings, meters: NodeMeters, turns: Turns) -> PluginFactory:
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
    lane = Lane("NVML initialisation", DRIVER_LOAD_SECONDS)
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
