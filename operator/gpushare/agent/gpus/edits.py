"""The variables, mounts and device nodes of a container: CDI specs and Allocate's answers are rendered from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount; both paths are absolute, the host path as the container runtime sees it."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node; `permissions` is a subset of "rwm" for the device cgroup."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """`cdi_devices` are qualified names such as `gpushare.dev/gpu=<uuid>`."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    """Directories in memory, bounded, of the container's own and empty at its start. CDI alone can make them."""
