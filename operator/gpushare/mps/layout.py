"""Where a GPU's daemon lives on the node. The agent writes and the supervisor reads by this one description.

<root>/<gpu uuid>/        0711 root
    daemon.json           wanted, by the agent
    state.json            done, by the supervisor
    endings.json          clients that the agent had ended, so that a restarted one ends none twice
    seen.json             what the agent saw last, so that a restarted one knows what happened in between
    pipe/                 the daemon's own sockets: for the supervisor and the agent only
    client/control        hard link to pipe/control: all that a client sees
    log/                  control.log, server.log
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GpuDir:
    path: Path

    @property
    def uuid(self) -> str:
        return self.path.name

    @property
    def wanted(self) -> Path:
        return self.path / "daemon.json"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def endings(self) -> Path:
        return self.path / "endings.json"

    @property
    def seen(self) -> Path:
        return self.path / "seen.json"

    @property
    def original_mode(self) -> Path:
        """The compute mode found before the GPU was taken, written by the agent before it changes anything."""
        return self.path / "original-compute-mode"

    @property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @property
    def control(self) -> Path:
        return self.pipe / "control"

    @property
    def client(self) -> Path:
        return self.path / "client"

    @property
    def client_control(self) -> Path:
        return self.client / "control"

    @property
    def log(self) -> Path:
        return self.path / "log"


def gpu_dir(root: Path, uuid: str) -> GpuDir:
    return GpuDir(root / uuid)


def gpu_dirs(root: Path) -> list[GpuDir]:
    """Every GPU directory under `root`, by name; other entries are passed over."""
    if not root.is_dir():
        return []
    return [GpuDir(entry) for entry in sorted(root.iterdir()) if entry.is_dir() and entry.name.startswith("GPU-")]
