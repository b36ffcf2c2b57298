"""Runs the agent on a real node: NVML or its simulation, the kubelet's sockets, the HTTP endpoints."""

import asyncio
import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from gpushare.agent.agent import Agent, Interfaces
from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.gpus import driver
from gpushare.agent.kubelet.allocation_lock import AllocationLock, LockedPodResources
from gpushare.agent.kubelet.plugin import DevicePlugin
from gpushare.agent.kubelet.plugins import PluginFactory
from gpushare.agent.kubelet.service import UNMEASURED, DeviceKind
from gpushare.agent.podresources.client import PodResources
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.meters import NodeMeters, export
from gpushare.agent.status.metrics import WITHOUT_DRIVER, NodeSnapshot
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.http import probes
from gpushare.kube.client import Kube
from gpushare.kube.events.recorder import EventRecorder
from gpushare.messages.log_on_change import LogOnChange
from gpushare.metrics.endpoint import exposed
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlProgram, DaemonControl
from gpushare.mps.control_v3 import ControlProgramV3
from gpushare.mps.files import read_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.simulation import bin_dir

LOG = logging.getLogger(__name__)
DRIVER_RETRY_SECONDS = 10.0
CONTROL_SECONDS = 2.0
"""A control command takes some 20 ms; a wedged daemon must not use up a pod's grace period."""
DRIVER_LOAD_SECONDS = 60.0
"""Initialising a GPU that nothing kept awake takes seconds each."""


class NodeProcess:
    """Health and metrics of this process, which serves them before the driver is there. `agent`: None until then."""

    def __init__(self) -> None:
        self.agent: Agent | None = None

    def unhealthy(self) -> str | None:
        return self.agent.health.unhealthy() if self.agent else None

    def unready(self) -> str | None:
        return self.agent.health.unready() if self.agent else "waiting for the NVIDIA driver"

    def snapshot(self) -> NodeSnapshot:
        return self.agent.snapshot() if self.agent else WITHOUT_DRIVER


async def run(settings: AgentSettings, kube: Kube) -> None:
    """Runs until cancelled."""
    process = NodeProcess()
    exported, meters = export(process.snapshot)
    checks: dict[str, probes.Check] = {"/healthz": process.unhealthy, "/readyz": process.unready}
    async with probes.serve(settings.probe_port, checks), exposed(settings.metrics_port, exported):
        lock = AllocationLock(boot_clock)
        with closing(PodResources(settings.pod_resources)) as pod_resources:
            interfaces = Interfaces(
                kube=kube,
                nvml=await _open_nvml(settings),
                pod_resources=LockedPodResources(pod_resources, lock),
                plugins=_plugins(settings, lock, meters),
                control=_controls(settings),
                recorder=EventRecorder(kube, "gpushare-agent", settings.pod),
            )
            process.agent = Agent(settings, interfaces, meters)
            await process.agent.run()


def _plugins(settings: AgentSettings, lock: AllocationLock, meters: NodeMeters) -> PluginFactory:
    """Slots and whole GPUs are timed; users do not wait for our own MPS pods."""

    def plugin(resource: str, kinds: Sequence[DeviceKind]) -> DevicePlugin:
        timed = UNMEASURED if resource == names.MPS_RESOURCE else meters
        return DevicePlugin(resource, settings.device_plugins, kinds, boot_clock, lock, timed)

    return plugin


def _controls(settings: AgentSettings) -> Callable[[Uuid], DaemonControl]:
    """The control program of a GPU's daemon: the driver's own, or the simulated one; by the protocol of the daemon."""

    def control(uuid: Uuid) -> DaemonControl:
        simulated = settings.simulation_dir is not None
        programs = bin_dir() if simulated else driver.control_program_dir(settings.driver_mount)
        directory = gpu_dir(settings.root, uuid)
        state = read_model(directory.state, DaemonState).value
        v3 = state is not None and state.protocol == MpsProtocol.V3
        return (ControlProgramV3 if v3 else ControlProgram)(programs, directory.pipe, directory.log, CONTROL_SECONDS)

    return control


async def _open_nvml(settings: AgentSettings) -> Nvml:
    """Waits for the driver: a driver container may still be building it."""
    if settings.simulation_dir is not None:
        from gpushare.simulation.nvml import SimulatedNvml

        return SimulatedNvml(Path(settings.simulation_dir))
    caller, problems = BlockingCaller("NVML initialisation", DRIVER_LOAD_SECONDS), LogOnChange(LOG)
    while True:
        try:
            return await caller.call(_load_nvml, settings.driver_mount)
        except (NvmlError, HungError, OSError) as error:
            problems.log("waiting for the NVIDIA driver: %s", error)
            await asyncio.sleep(DRIVER_RETRY_SECONDS)


def _load_nvml(mount: Path) -> Nvml:
    from gpushare.nvml.real import PynvmlNvml

    library = driver.nvml_library(mount)
    if library is not None:
        # Once loaded by its path, the library is found by NVIDIA's binding, which asks for the bare name.
        ctypes.CDLL(str(library))
    return PynvmlNvml()
