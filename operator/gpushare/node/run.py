"""The agent with its real surroundings: NVML or its simulation, the kubelet's sockets, probes, departures."""

import asyncio
import ctypes
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpushare.api.gpunode import Uuid
from gpushare.kube.client import Kube
from gpushare.kube.events import post
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlProgram
from gpushare.mps.layout import gpu_dir
from gpushare.node import driver, probes
from gpushare.node.agent import Agent
from gpushare.node.departure import Departure
from gpushare.node.lane import HungError, Lane
from gpushare.node.plugin import DevicePlugin
from gpushare.node.podresources import PodResources
from gpushare.node.settings import AgentSettings
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.simulation import bin_dir

LOG = logging.getLogger(__name__)
DRIVER_RETRY_SECONDS = 10.0
CONTROL_SECONDS = 2.0
"""A control command takes some 20 ms; a wedged daemon must not use up a pod's grace period."""
DRIVER_LOAD_SECONDS = 60.0
"""Initialising a GPU that nothing kept awake takes seconds each."""


async def run(settings: AgentSettings, kube: Kube) -> None:
    """Runs until cancelled."""
    agent: Agent | None = None
    checks: dict[str, probes.Check] = {
        "/healthz": lambda: agent.unwell() if agent else None,
        "/readyz": lambda: agent.unready() if agent else "waiting for the NVIDIA driver",
    }
    server = await probes.serve(settings.probe_port, checks)
    async with server:
        nvml = await _open_nvml(settings)
        agent = Agent(
            settings,
            kube,
            nvml,
            PodResources(settings.pod_resources),
            lambda resource, hooks: DevicePlugin(resource, settings.kubelet_dir, hooks, boot_clock),
        )
        departure = Departure(
            nvml,
            pods=agent.pods_by_uid,
            gpus=agent.taken,
            control=_controls(settings),
            post=partial(post, kube),
            instance=settings.pod,
        )
        agent.follow_pods(departure.poke)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.run())
            tasks.create_task(departure.run())


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
