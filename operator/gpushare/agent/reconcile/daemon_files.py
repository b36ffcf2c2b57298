"""A GPU's directory on the node: the agent writes daemon.json and reads state.json and broker.json.

Between two ticks `DaemonChanges` notices what a supervisor or an attach broker reports, so that no container waits for
the next tick and no gate stays open until it.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpushare.agent.gpus.container_labels import Label, open_to_containers
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.gpunode import Uuid
from gpushare.mps.files import ModelFiles, read_model, write_model, write_text
from gpushare.mps.layout import BROKER_GROUP, GpuDir, gpu_dirs
from gpushare.mps.wire import BrokerState, DaemonState, DesiredDaemon
from gpushare.process.bounded_read import read_text

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """One taken GPU."""

    directory: GpuDir
    wanted: DesiredDaemon
    state: DaemonState | None
    broker: BrokerState | None
    client_control: bool

    @property
    def server_pid(self) -> int | None:
        return self.state.server_pid if self.state else None


def read_all(root: Path, files: ModelFiles) -> dict[Uuid, DaemonFiles]:
    """Every GPU that has a readable daemon.json; an unreadable one is logged and left out."""
    taken = {}
    for directory in gpu_dirs(root):
        wanted = files.read(directory.wanted, DesiredDaemon)
        if wanted.value is None and not wanted.absent:
            LOG.warning("GPU directory ignored: %s", wanted.reason)
        if wanted.value is not None:
            taken[directory.uuid] = DaemonFiles(
                directory,
                wanted.value,
                files.read(directory.state, DaemonState).value,
                files.read(directory.broker_state, BrokerState).value,
                directory.client_control.exists(),
            )
    return taken


def untaken(root: Path) -> dict[Uuid, GpuDir]:
    """GPUs that have a directory and are not taken, for one of these reasons.

    - An agent died before it took the GPU, whose compute mode it may have changed.
    - An agent died before its last step of giving the GPU back.
    - NVML did not reach the GPU when it was given back, so its mode is yet to be restored.
    - The supervisor wrote state.json once more, after it had ended the daemon.
    """
    return {
        directory.uuid: directory
        for directory in gpu_dirs(root)
        if not (directory.wanted.exists() or directory.whole.exists())
        and ((state := read_model(directory.state, DaemonState)).absent or (state.value and state.value.stopped))
    }


def prepare(directory: GpuDir, label: Label = open_to_containers) -> None:
    """Makes the directories that are not the supervisor's own; that one makes pipe/ and log/, private to root.

    The broker's group may write to attach/ and broker/. The agent gives them to that group without a capability, since
    the chart makes it a member.
    """
    directory.path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    for path, mode in ((directory.path, 0o711), (directory.client, 0o755)):
        path.mkdir(exist_ok=True)
        path.chmod(mode)  # mkdir's own mode is cut by the umask
    for path in (directory.attach, directory.broker):
        path.mkdir(exist_ok=True)
        path.chmod(0o775)
        try:
            os.chown(path, -1, BROKER_GROUP)
        except PermissionError:
            LOG.warning(
                "the attach broker cannot write to %s: the agent must be a member of group %d", path, BROKER_GROUP
            )
    label(directory.attach)


def is_prepared(directory: GpuDir) -> bool:
    """False for a GPU that an agent of an older release took."""
    return directory.broker.exists()


def has_room(root: Path) -> bool:
    """Whether a file can be made there, once it exists. False also for a file system that does not answer."""
    try:
        disk = os.statvfs(root)
    except FileNotFoundError:
        return True
    except OSError:  # such as EIO: a tick has to decide on the GPUs all the same
        return False
    if disk.f_flag & os.ST_RDONLY:  # as the kernel makes one with errors
        return False
    return disk.f_bavail > 0 and (disk.f_favail > 0 or disk.f_files == 0)


def write_wanted(directory: GpuDir, wanted: DesiredDaemon) -> None:
    write_model(directory.wanted, wanted)


def original_mode(directory: GpuDir) -> ComputeMode | None:
    """The compute mode that was found before the GPU was taken; None: it was never changed."""
    try:
        return ComputeMode(read_text(directory.original_mode).strip())
    except (OSError, ValueError):
        return None


def write_original_mode(directory: GpuDir, mode: ComputeMode) -> None:
    """Writes it unless an earlier agent did: the mode found by then would be ours."""
    if not directory.original_mode.exists():
        write_text(directory.original_mode, mode.value + "\n")


Said = tuple[object, ...]
"""The part of a file that decides whether the GPU takes clients."""


class DaemonChanges:
    """Guarantees: a heartbeat, an arrival or a refusal alone is no change."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._seen: dict[GpuDir, tuple[Said | None, Said | None]] = {}

    def any(self, directories: Iterable[GpuDir]) -> bool:
        """Whether one of them says something else than at the last call, or was not among them then."""
        before, read = self._seen, self._files.read
        self._seen = {
            gpu: (_daemon(read(gpu.state, DaemonState).value), _broker(read(gpu.broker_state, BrokerState).value))
            for gpu in directories
        }
        return any(before.get(gpu) != said for gpu, said in self._seen.items())


def _daemon(state: DaemonState | None) -> Said | None:
    """What a supervisor says; None: there is no such file, or it cannot be read."""
    if state is None:
        return None
    return state.share, state.reason, state.stopped, state.server_pid, state.in_force


def _broker(state: BrokerState | None) -> Said | None:
    """What a broker says; None as for a supervisor."""
    return None if state is None else (state.listening, state.problem)
