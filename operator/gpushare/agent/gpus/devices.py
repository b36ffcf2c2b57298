"""The devices, mounts and variables that containers get of this node's GPUs, simulated or real.

Guarantees: a client gets one GPU's device node and the `control` socket of its MPS daemon, nothing that can change a
limit. A container with whole GPUs gets their device nodes, and nothing of MPS. An MPS pod gets every GPU of the node,
since device nodes are fixed when a container is created.
"""

import logging
import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.gpus.driver import CONTROL_DEVICES, EXECUTABLES, SERVER_DEVICES, DriverFiles, find
from gpushare.agent.gpus.edits import ContainerEdits, DeviceNode, Mount
from gpushare.agent.gpus.fronts import FrontLibraries, Fronts, PreStopProgram
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.settings import AgentSettings
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)

DRIVER_BIN = "/opt/gpushare/driver/bin"
"""The directory in which an MPS pod finds nvidia-cuda-mps-control and -server."""
SCAN_SECONDS = 20.0

IMAGE_LIBRARY_DIRS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
"""The directories in which the loaders of Debian's and Red Hat's families look by default, and the one that NVIDIA's
base images put before them by LD_LIBRARY_PATH, and so before an older libcuda in the image's ld.so.cache: a CDI spec
does not know the image."""

NO_DRIVER = DriverFiles({}, {})
NO_FRONTS: Fronts = {}
WHOLE = "1.0000"
"""GPUSHARE_MEMORY_FRACTION of a process that sees its part as the whole."""

NO_OTHER_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Keeps NVIDIA's runtime, where it is the default, from adding GPUs by itself."""
LIBCUDA = "libcuda.so"
LINK_DIR = "/opt/gpushare/driver/link"
LIBCUDA_FOLDER = {"TRITON_LIBCUDA_PATH": LINK_DIR}
"""Triton, and so torch.compile and vLLM, asks the image's ld.so.cache for libcuda, which no mount changes. It links
what it compiles with the library in this folder, so that is the driver's own: a front does not define all its
symbols."""
LOG_DIRS = (names.CLIENT_LOG_DIR, names.DEFAULT_LOG_DIR)
CLIENT_ENV = {names.ENV_PIPE_DIRECTORY: names.CLIENT_PIPE_DIR, **NO_OTHER_GPUS, **LIBCUDA_FOLDER}


def with_pre_stop(edits: ContainerEdits, program: str | None) -> ContainerEdits:
    """`edits` with the program of a container's preStop hook; `program` as the host names it. None: there is none.

    It goes with the mount of the pipe directory: whoever can be an MPS client has it.
    """
    return edits if program is None else replace(edits, mounts=(*edits.mounts, Mount(program, names.PRE_STOP_PROGRAM)))


def client_edits(minor: int, client_dir: str, driver: DriverFiles, fronts: Fronts = NO_FRONTS) -> ContainerEdits:
    """The edits for a client of the GPU with device node /dev/nvidia<minor>; `client_dir` as the host names it."""
    return ContainerEdits(
        env=CLIENT_ENV,
        mounts=(
            *_library_mounts(driver, fronts),
            *_libraries_to_link(driver),
            *_tools(driver),
            *_sockets(client_dir),
        ),
        devices=_devices(driver, (f"nvidia{minor}", *CONTROL_DEVICES)),
        scratch=LOG_DIRS,
    )


def simulated_client_edits(
    minor: int, client_dir: str, simulation_dir: str, driver: DriverFiles = NO_DRIVER, fronts: Fronts = NO_FRONTS
) -> ContainerEdits:
    """The same as `client_edits`, of a simulated GPU, whose device node is a socket."""
    device = f"{simulation_dir}/dev/nvidia{minor}"
    libraries = (*_library_mounts(driver, fronts), *_libraries_to_link(driver))
    mounts = (*libraries, Mount(device, device), *_sockets(client_dir))
    return ContainerEdits(env=CLIENT_ENV, mounts=mounts, scratch=LOG_DIRS)


def showing_grant(edits: ContainerEdits, uuid: Uuid) -> ContainerEdits:
    """`edits` with the variables that go with front libraries: each process' part of what it sees is the whole.

    CDI's variables have precedence over the pod's own, so they go with the mounts, whenever the pod was admitted.
    """
    return replace(edits, env={**edits.env, names.ENV_SHOWN_GPU: uuid, names.ENV_GRANTED_FRACTION: WHOLE})


def whole_edits(minors: Iterable[int], driver: DriverFiles) -> ContainerEdits:
    """The edits for a container that gets GPUs whole, with the device nodes /dev/nvidia<minor>."""
    nodes = (*(f"nvidia{minor}" for minor in sorted(minors)), *SERVER_DEVICES)
    return ContainerEdits(
        env={**NO_OTHER_GPUS, **LIBCUDA_FOLDER},
        mounts=(*_library_mounts(driver), *_libraries_to_link(driver), *_tools(driver)),
        devices=_devices(driver, nodes),
    )


def simulated_whole_edits(minors: Iterable[int], simulation_dir: str) -> ContainerEdits:
    devices = [f"{simulation_dir}/dev/nvidia{minor}" for minor in sorted(minors)]
    return ContainerEdits(env=NO_OTHER_GPUS, mounts=tuple(Mount(device, device) for device in devices))


def mps_edits(minors: Iterable[int], driver: DriverFiles) -> ContainerEdits:
    """The edits for an MPS pod, with the device nodes /dev/nvidia<minor>."""
    executables = tuple(Mount(path, f"{DRIVER_BIN}/{name}") for name, path in driver.executables.items())
    return ContainerEdits(
        env=NO_OTHER_GPUS,
        mounts=(*_library_mounts(driver), *executables),
        devices=_devices(driver, (*(f"nvidia{minor}" for minor in sorted(minors)), *SERVER_DEVICES)),
    )


def simulated_mps_edits(simulation_dir: str) -> ContainerEdits:
    return ContainerEdits(mounts=(Mount(simulation_dir, simulation_dir, read_only=False),))


def _sockets(client_dir: str) -> tuple[Mount, ...]:
    """The way to the attach broker, also for a process that lost its variables: CUDA looks at its default then."""
    return tuple(Mount(client_dir, path) for path in (names.CLIENT_PIPE_DIR, names.DEFAULT_PIPE_DIR))


def _tools(driver: DriverFiles) -> tuple[Mount, ...]:
    return tuple(Mount(path, f"/usr/bin/{name}") for name, path in driver.tools.items())


def _library_mounts(driver: DriverFiles, fronts: Fronts = NO_FRONTS) -> tuple[Mount, ...]:
    """A front library lies at the place of the driver's, which lies beside it under another name.

    That name does not begin with `lib`, so that an image's `ldconfig` passes it over.
    """
    files = {name: _front_of(name, fronts) or path for name, path in driver.libraries.items()}
    files |= {names.FRONT_PREFIX + soname: driver.libraries[soname] for soname in fronts if soname in files}
    return tuple(Mount(path, f"{folder}/{name}") for folder in IMAGE_LIBRARY_DIRS for name, path in files.items())


def _libraries_to_link(driver: DriverFiles) -> tuple[Mount, ...]:
    """What LIBCUDA_FOLDER promises."""
    return tuple(
        Mount(path, f"{LINK_DIR}/{name}") for name, path in driver.libraries.items() if name.startswith(LIBCUDA)
    )


def _front_of(name: str, fronts: Fronts) -> str | None:
    """The front of a library by its SONAME or by the name without a version, by which some programs open it."""
    return fronts.get(name) or fronts.get(f"{name}.1")


def _devices(driver: DriverFiles, nodes: Iterable[str]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(f"{driver.devices}/{node}", f"/dev/{node}") for node in nodes)


class Devices:
    """Renders edits for the driver that `scan` found. `by_cdi`: Allocate names CDI devices, else carries the edits."""

    def __init__(self, settings: AgentSettings) -> None:
        self.by_cdi = False
        self._settings = settings
        self._driver = NO_DRIVER
        self._fronts = FrontLibraries(settings.fronts, settings.front_dir)
        self._pre_stop = PreStopProgram(settings.fronts, settings.pre_stop_dir)
        self._caller = BlockingCaller("driver root", SCAN_SECONDS)
        self._problems = LogOnChange(LOG)

    async def scan(self) -> None:
        """Finds the driver's files again: an upgrade changes their names. Keeps the last ones on an error.

        A simulated driver's are those that somebody put below its directory, as a rule none.
        """
        simulated, root, mount = self._settings.simulation_dir, self._settings.driver_root, self._settings.driver_mount
        if simulated is not None:
            root, mount = simulated, Path(simulated)
        try:
            self._driver = await self._caller.call(find, root, mount, self._settings.host_devices)
            self._problems.clear()
        except (OSError, HungError) as error:
            self._problems.log("driver root %s cannot be read: %s", root, error)

    def problem(self) -> str:
        """Why no container can be given a GPU; empty: nothing is in the way."""
        if self._settings.simulation_dir is not None:
            return ""
        if self._driver.libraries:
            return self._missing_devices()
        return (
            f"no libcuda.so.1 below the driver root {self._settings.driver_root}: set the chart's driverRoot, or its "
            "driverDirectories where links lead out of /usr"
        )

    def _missing_devices(self) -> str:
        missing = " and ".join(f"{self._driver.devices}/{name}" for name in self._driver.missing)
        if not missing:
            return ""
        return (
            f"this node has no {missing}, so no container with a GPU starts: `nvidia-modprobe -c 0 -u` on the node "
            "loads the driver's modules and makes the device nodes"
        )

    def daemon_problem(self) -> str:
        """Why no MPS daemon can be started here; empty: nothing is in the way. One that runs has its files."""
        missing = [name for name in EXECUTABLES if name not in self._driver.executables]
        if self._settings.simulation_dir is not None or not missing:
            return ""
        return (
            f"no {' and no '.join(missing)} below the driver root {self._settings.driver_root}: the node's image ships "
            "the driver without it, or the chart's driverRoot or driverDirectories does not show it"
        )

    def remove_unused_fronts(self, specs: str) -> None:
        """Removes what `specs`, the text of all CDI specs, does not name. OSError: try again with the next agent."""
        self._fronts.remove_unused(specs)

    def client(
        self, view: GpuView, pipe: Path, *, shows_grant: bool = False, has_classes: bool = False
    ) -> ContainerEdits:
        """The edits that a GPU's CDI spec carries. `pipe`: the host's directory that becomes the pipe directory.

        OSError: the front libraries, by which a container sees its grant as the GPU's memory or has a class, or the
        program of its preStop hook cannot be delivered.
        """
        fronts = self._fronts.delivered(shows_grant=shows_grant, has_classes=has_classes)
        if self._settings.simulation_dir is not None:
            simulated, minor = self._settings.simulation_dir, view.info.minor
            edits = simulated_client_edits(minor, str(pipe), simulated, self._driver, fronts)
        else:
            edits = client_edits(view.info.minor, str(pipe), self._driver, fronts)
        edits = with_pre_stop(edits, self._pre_stop.delivered())
        return showing_grant(edits, view.info.uuid) if shows_grant else edits

    def allocated(self, view: GpuView, pipe: Path) -> ContainerEdits:
        """Allocate's answer for a slot of the GPU. Without CDI nothing shows the grant, and no client has a class: the
        pod's own variables, which count from the whole GPU, would have precedence.
        """
        if self.by_cdi:
            return ContainerEdits(cdi_devices=(names.cdi_device(view.info.uuid),))
        return self.client(view, pipe)

    def whole(self, views: Iterable[GpuView]) -> ContainerEdits:
        """The edits of GPUs that a container gets whole; of one GPU, those that its CDI spec carries."""
        minors = [view.info.minor for view in views]
        if self._settings.simulation_dir is not None:
            return simulated_whole_edits(minors, self._settings.simulation_dir)
        return whole_edits(minors, self._driver)

    def allocated_whole(self, views: Collection[GpuView]) -> ContainerEdits:
        """Allocate's answer for whole GPUs."""
        if self.by_cdi:
            return ContainerEdits(cdi_devices=tuple(names.cdi_device(view.info.uuid) for view in views))
        return self.whole(views)

    def mps(self, views: Mapping[Uuid, GpuView]) -> ContainerEdits:
        if self._settings.simulation_dir is not None:
            return simulated_mps_edits(self._settings.simulation_dir)
        return mps_edits((view.info.minor for view in views.values()), self._driver)
