"""A GPU's directory as the agent keeps it: daemon.json written, state.json read."""

import logging
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.gpus.compute_mode import original_mode
from gpushare.api.gpunode import ComputeMode, Uuid
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir, gpu_dirs
from gpushare.mps.wire import DaemonState, DaemonWanted

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """One taken GPU. `written_at`: daemon.json's mtime, seconds since the epoch."""

    directory: GpuDir
    wanted: DaemonWanted
    state: DaemonState | None
    client_control: bool
    original_mode: ComputeMode | None
    written_at: float

    @property
    def server_pid(self) -> int | None:
        return self.state.server_pid if self.state else None


def read_all(root: Path) -> dict[Uuid, DaemonFiles]:
    """Every GPU that has a readable daemon.json."""
    found = {}
    for directory in gpu_dirs(root):
        wanted = read_model(directory.wanted, DaemonWanted)
        if wanted.value is None and not wanted.absent:
            LOG.warning("GPU directory passed over: %s", wanted.reason)
        if wanted.value is not None:
            found[directory.uuid] = DaemonFiles(
                directory,
                wanted.value,
                read_model(directory.state, DaemonState).value,
                directory.client_control.exists(),
                original_mode(directory),
                directory.wanted.stat().st_mtime,
            )
    return found


def prepare(directory: GpuDir) -> None:
    """The directories that belong to the agent. pipe/ and log/ are the supervisor's, private to root."""
    directory.path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    for path, mode in ((directory.path, 0o711), (directory.client, 0o755)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)  # mkdir's own mode is cut by the umask


def write_wanted(directory: GpuDir, wanted: DaemonWanted) -> None:
    write_model(directory.wanted, wanted)
