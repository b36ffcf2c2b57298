"""The directory of a GPU on its node: `<root>/<GPU UUID>`, mode 0711, of root.

docs/architecture.md, "The GPU directory", has each file with who writes it and what is in it.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

BROKER_GROUP = 65534
"""May write to `attach` and `broker`. Never changes: directories outlive the releases of those who use them."""
_NAMESPACE = re.compile("c[0-9a-f]{16}")


@dataclass(frozen=True)
class GpuDir:
    """Each path is made once: an agent looks at some of them several times a second."""

    path: Path

    @property
    def uuid(self) -> str:
        return self.path.name

    @cached_property
    def wanted(self) -> Path:
        return self.path / "daemon.json"

    @cached_property
    def whole(self) -> Path:
        return self.path / "whole.json"

    @cached_property
    def grants(self) -> Path:
        return self.path / "grants.json"

    @cached_property
    def state(self) -> Path:
        return self.path / "state.json"

    @cached_property
    def endings(self) -> Path:
        return self.path / "endings.json"

    @cached_property
    def seen(self) -> Path:
        return self.path / "seen.json"

    @cached_property
    def original_mode(self) -> Path:
        """The GPU's compute mode before it was taken, written by the agent before any change."""
        return self.path / "original-compute-mode"

    @cached_property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @cached_property
    def control(self) -> Path:
        return self.pipe / "control"

    @cached_property
    def client(self) -> Path:
        return self.path / "client"

    @cached_property
    def client_control(self) -> Path:
        return self.client / "control"

    @cached_property
    def client_share(self) -> Path:
        return self.client / "share"

    @cached_property
    def clients(self) -> Path:
        return self.client / "clients.json"

    @cached_property
    def turns(self) -> Path:
        return self.client / "turns"

    @cached_property
    def attach(self) -> Path:
        """Mounted read-only into client containers. The broker's own, as is `broker`."""
        return self.path / "attach"

    @cached_property
    def attach_control(self) -> Path:
        return self.attach / "control"

    @cached_property
    def board(self) -> Path:
        return self.attach / "board"

    @property
    def attach_new(self) -> Path:
        """The name at which the supervisor makes the broker's socket, before it gives it the name above."""
        return self.attach / ".control.new"

    @cached_property
    def broker(self) -> Path:
        return self.path / "broker"

    @cached_property
    def broker_state(self) -> Path:
        return self.broker / "broker.json"

    @cached_property
    def log(self) -> Path:
        return self.path / "log"


def namespace_name(pod_uid: str, container: str) -> str:
    """The namespace of a container, under protocol v3: short, for it is a part of a socket's path, and of the
    characters that MPS takes in a name.
    """
    return "c" + hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()[:16]


def is_namespace_name(name: str) -> bool:
    return _NAMESPACE.fullmatch(name) is not None


@lru_cache(maxsize=256)
def gpu_dir(root: Path, uuid: str) -> GpuDir:
    return GpuDir(root / uuid)


def gpu_dirs(root: Path) -> list[GpuDir]:
    """All GPU directories under `root`, by name; other entries are skipped."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        uuids = [entry.name for entry in entries if entry.name.startswith("GPU-") and entry.is_dir()]
    return [gpu_dir(root, name) for name in sorted(uuids)]
