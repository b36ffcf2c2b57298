"""One control daemon as a process: how it is started, adopted and ended.

Guarantees: at most one daemon is started per directory. A daemon of an earlier supervisor is adopted only if its PID
file and /proc agree. No process is signalled that is not the daemon. Killing a daemon ends its server and clients, so
only `kill` does that.
"""

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from gpushare.mps.control import PROGRAM, ControlError, daemon_environment
from gpushare.mps.control_v3 import SERVER
from gpushare.mps.layout import GpuDir
from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.process.bounded_read import GONE, read_bytes, read_start, read_text
from gpushare.process.procfs import MAX_ENVIRONMENT_BYTES, PROC
from gpushare.process.threads import start_thread

LOG = logging.getLogger(__name__)
PID_FILE = f"{PROGRAM}.pid"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
MAX_COMMAND_BYTES = 4096
"""More than the program and its first arguments have. A process chooses its command line, and how long it is."""
_ARGUMENTS = {MpsProtocol.V2: ("-f", "-multiuser-server"), MpsProtocol.V3: ("-p", "3", "-f", "-m")}
_LEFT_BEHIND = ("control", "control_privileged", "control_lock", "log", PID_FILE)


class DaemonProcess:
    """The daemon of one GPU directory. Needs root, for `-multiuser-server`, and the host's PID namespace.

    `protocol`: what the daemon speaks that runs, or the latest one spoke.
    """

    def __init__(self, gpu: GpuDir, bin_dir: Path | None, log: DaemonLog, ended: Callable[[], None]) -> None:
        """`ended`: called in a thread of its own when a daemon that `start` started has ended, if there is a thread."""
        self._gpu = gpu
        self._bin_dir = bin_dir
        self._log = log
        self._ended = ended
        self._child: subprocess.Popen[bytes] | None = None
        self._adopted: tuple[int, int] | None = None
        self.protocol = MpsProtocol.V2

    @property
    def pid(self) -> int | None:
        """The running daemon's PID; None if none runs. OSError: that cannot be read now."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        if self._adopted and _start_time(self._adopted[0]) == self._adopted[1]:
            return self._adopted[0]
        return None

    @property
    def exit_status(self) -> str:
        """How the daemon of the last `start` has ended, for a message; empty while it runs, or if there was none."""
        code = self._child.poll() if self._child else None
        if code is None:
            return ""
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def start(self, protocol: MpsProtocol = MpsProtocol.V2) -> None:
        """Raises ControlError if the program cannot be executed. Errors of the daemon itself are in its log."""
        self._gpu.pipe.mkdir(mode=0o700, exist_ok=True)
        self._remove_server_directory()
        environment = daemon_environment(self._bin_dir, self._gpu.pipe, self._gpu.log)
        program = str(self._bin_dir / PROGRAM) if self._bin_dir else PROGRAM
        self._adopted = None
        self.protocol = protocol
        with self._log.append() as log:
            try:
                self._child = subprocess.Popen(
                    [program, *_ARGUMENTS[protocol]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment, "CUDA_VISIBLE_DEVICES": self._gpu.uuid},
                    start_new_session=True,
                )
            except OSError as error:
                raise ControlError(f"{program} cannot be started: {error.strerror or error}") from error
        try:
            start_thread(self._watch, self._child)
        except OSError as error:  # its end is seen at the next observation then
            LOG.warning("the MPS daemon %d is not waited for: %s", self._child.pid, error)

    def _watch(self, child: "subprocess.Popen[bytes]") -> None:
        child.wait()
        self._ended()

    def adopt(self) -> int | None:
        """Take over the daemon that already serves this directory. Returns its PID, or None if there is none.

        OSError: that cannot be read now.
        """
        try:
            pid = int(read_text(self._gpu.pipe / PID_FILE))
        except (FileNotFoundError, ValueError):
            return None
        start = _start_time(pid)
        if start is None or not _is_daemon_of(pid, self._gpu.pipe):
            return None
        self._child, self._adopted = None, (pid, start)
        self.protocol = _protocol_of(pid)
        return pid

    def kill(self) -> None:
        """SIGKILL. The server and all clients end too."""
        pid = self.pid
        if pid is not None:
            _signal(pid, signal.SIGKILL)

    def clean_up(self) -> None:
        """Remove the files of an ended daemon from pipe/, and forget the daemon: its end was requested."""
        self._child = None
        for name in _LEFT_BEHIND:
            (self._gpu.pipe / name).unlink(missing_ok=True)
        self._remove_server_directory()

    def _remove_server_directory(self) -> None:
        """What an ended daemon of protocol v3 left: the sockets of its server and namespaces."""
        directory = self._gpu.pipe / SERVER
        if directory.exists():
            shutil.rmtree(directory)


def kill_server(pid: int) -> bool:
    """SIGKILL an MPS server; its clients get error 806. False: this PID is no MPS server, or no longer."""
    return SERVER_PROGRAM in _program_names(pid) and _signal(pid, signal.SIGKILL)


def command_name(pid: int) -> str:
    """The process's own name, at most 15 characters; empty if the process has gone."""
    try:
        return read_text(PROC / str(pid) / "comm").strip()
    except OSError:
        return ""


def is_mps(pid: int) -> bool:
    """Tells whether a process is an MPS daemon or server of any directory."""
    return not _program_names(pid).isdisjoint((PROGRAM, SERVER_PROGRAM))


def _is_daemon_of(pid: int, pipe: Path) -> bool:
    if PROGRAM not in _program_names(pid):
        return False
    try:
        environment = read_bytes(PROC / str(pid) / "environ", MAX_ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return False
    return f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in environment


def _protocol_of(pid: int) -> MpsProtocol:
    """The protocol by the arguments that `start` gives a daemon. OSError: they cannot be read now."""
    words = read_start(PROC / str(pid) / "cmdline", MAX_COMMAND_BYTES).split(b"\0")
    return MpsProtocol.V3 if any(pair == (b"-p", b"3") for pair in pairwise(words)) else MpsProtocol.V2


def _program_names(pid: int) -> set[str]:
    """File names of the program and its first arguments: a script's name follows its interpreter's. OSError: they
    cannot be read now.
    """
    try:
        words = read_start(PROC / str(pid) / "cmdline", MAX_COMMAND_BYTES).decode(errors="replace").split("\0")
    except GONE:
        return set()
    return {word.rpartition("/")[2] for word in words[:6]}


def _start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot. It distinguishes the process from a later one of its PID.

    None: it has ended. OSError: that cannot be read now, as for want of descriptors.
    """
    try:
        after_name = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()
    except GONE:
        return None
    return None if after_name[0] == "Z" else int(after_name[19])


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
