"""The agent with its real surroundings: NVML or its simulation, the kubelet's sockets, probes, departures."""

import asyncio
import ctypes
import logging
from collections.abc import Mapping
from pathlib import Path

from gpushare.kube.client import Kube, Object
from gpushare.kube.events import event, post, reference
from gpushare.mps.control import ControlProgram
from gpushare.mps.layout import gpu_dir
from gpushare.node import driver, probes
from gpushare.node.agent import Agent
from gpushare.node.lane import HungError, Lane
from gpushare.node.plugin import DevicePlugin
from gpushare.node.podresources import PodResources
from gpushare.node.settings import AgentSettings
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.simulation import bin_dir

LOG = logging.getLogger(__name__)
DRIVER_RETRY_SECONDS = 10.0
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
            lambda resource, hooks: DevicePlugin(resource, settings.kubelet_dir, hooks),
        )
        await agent.run()


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
