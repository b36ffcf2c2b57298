"""What a client container and an MPS pod get of a GPU. Pure: paths in, edits out.

A client gets one GPU's device node and the `control` socket of its daemon, nothing that can change a limit; an MPS pod
gets every GPU of the node, since device nodes are fixed when a container is created.
"""

import platform
from collections.abc import Iterable

from gpushare.api import names
from gpushare.node.driver import CONTROL_DEVICES, SERVER_DEVICES, Driver
from gpushare.node.edits import ContainerEdits, DeviceNode, Mount

DRIVER_BIN = "/opt/gpushare/driver/bin"
"""Where an MPS pod finds nvidia-cuda-mps-control and -server."""

IMAGE_LIBRARY_DIRS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
"""Where the loaders of Debian's and Red Hat's families look without being told: the spec knows no image."""

CLIENT_ENV = {
    names.ENV_PIPE_DIRECTORY: names.CLIENT_PIPE_DIR,
    # Keeps NVIDIA's runtime, where it is the default one, from adding GPUs by itself.
    "NVIDIA_VISIBLE_DEVICES": "void",
}


def client_edits(minor: int, client_dir: str, driver: Driver) -> ContainerEdits:
    """For a client of the GPU with device node /dev/nvidia<minor>; `client_dir` as the host names it."""
    return ContainerEdits(
        env=CLIENT_ENV,
        mounts=(*_library_mounts(driver), Mount(client_dir, names.CLIENT_PIPE_DIR)),
        devices=_devices(driver, (f"nvidia{minor}", *CONTROL_DEVICES)),
    )


def simulated_client_edits(minor: int, client_dir: str, simulation_dir: str) -> ContainerEdits:
    """The same in a simulation, where the device node is a socket."""
    device = f"{simulation_dir}/dev/nvidia{minor}"
    return ContainerEdits(env=CLIENT_ENV, mounts=(Mount(device, device), Mount(client_dir, names.CLIENT_PIPE_DIR)))


def mps_edits(minors: Iterable[int], driver: Driver) -> ContainerEdits:
    """For the pods that run the daemons."""
    executables = tuple(Mount(path, f"{DRIVER_BIN}/{name}") for name, path in driver.executables.items())
    return ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": "void"},
        mounts=(*_library_mounts(driver), *executables),
        devices=_devices(driver, (*(f"nvidia{minor}" for minor in sorted(minors)), *SERVER_DEVICES)),
    )


def simulated_mps_edits(simulation_dir: str) -> ContainerEdits:
    return ContainerEdits(mounts=(Mount(simulation_dir, simulation_dir, read_only=False),))


def _library_mounts(driver: Driver) -> tuple[Mount, ...]:
    return tuple(
        Mount(path, f"{folder}/{name}") for folder in IMAGE_LIBRARY_DIRS for name, path in driver.libraries.items()
    )


def _devices(driver: Driver, nodes: Iterable[str]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(f"{driver.devices}/{node}", f"/dev/{node}") for node in nodes)
