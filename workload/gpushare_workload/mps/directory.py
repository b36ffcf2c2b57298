"""The private directory of an MPS daemon of ours, and the clean-up after a measurement that was killed.

<temporary directory>/gpushare-bench-<uid>/   0700, ours
    <gpu uuid>.lock     locked (flock) while a benchmark uses that GPU; the lock ends with the process
    <gpu uuid>/
        compute-mode    the mode to restore; exists only while the mode is changed
        pipe/ log/      the daemon's; pipe/nvidia-cuda-mps-control.pid is its PID file

Guarantees: a process counts as our daemon only by its command line and its environment, never by its PID alone.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.mps.control import PROGRAM, ControlError, ControlProgram
from gpushare.process.procfs import read_start_of_running
from gpushare_workload.mps import processes

END_SECONDS = 10.0
COMMAND_SECONDS = 15.0
"""Longest time for one command: a server that hangs also blocks commands that only read."""


@dataclass(frozen=True, slots=True)
class DaemonDirectory:
    """The directory of one daemon, for one GPU."""

    path: Path

    @property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def longest_socket(self) -> Path:
        return self.pipe / "control_privileged"

    @property
    def compute_mode(self) -> Path:
        """The file with the mode to restore: written before the mode is changed, removed after it is restored."""
        return self.path / "compute-mode"

    def control(self, program: Path) -> ControlProgram:
        """Commands to this directory's daemon. `program`: the path of the control program."""
        return ControlProgram(program.parent, self.pipe, self.log, COMMAND_SECONDS)

    def daemon(self) -> int | None:
        """The PID of the daemon that serves this directory, or None."""
        try:
            pid = int((self.pipe / f"{PROGRAM}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if processes.is_daemon_of(pid, PROGRAM, self.pipe) else None


def base(temporary: Path | None = None) -> Path:
    """The parent of all daemon directories of this user; created if it does not exist.

    Raises ValueError if another user created it: everybody can write to /tmp.
    """
    path = (temporary or Path(tempfile.gettempdir())) / f"gpushare-bench-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ValueError(f"{path} is not a directory of yours alone (0700): remove it, or set TMPDIR to another place")
    return path


@contextmanager
def alone(parent: Path, uuid: str) -> Iterator[None]:
    """Keeps other benchmarks off this GPU. Raises ValueError with the PID of a benchmark that already uses it."""
    with (parent / f"{uuid}.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ValueError(f"another benchmark uses {uuid}: PID {lock.read().strip()}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def make(directory: DaemonDirectory) -> None:
    for path in (directory.path, directory.pipe, directory.log):
        path.mkdir(mode=0o700)


def clear_leftovers(
    directory: DaemonDirectory, program: Path, restore: Callable[[str], None], seconds: float = END_SECONDS
) -> list[str]:
    """Ends the daemon of a killed benchmark and restores the compute mode by `restore`. Call it while `alone`.

    Returns sentences about what was done. Raises ControlError if the daemon does not end.
    """
    if not directory.path.exists():
        return []
    daemon = directory.daemon()
    end_daemon(directory, program, seconds)
    restore_mode(directory, restore)
    shutil.rmtree(directory.path)
    ended = f", and ended PID {daemon}" if daemon else ""
    return [f"removed {directory.path}, left by a benchmark that was killed{ended}"]


def restore_mode(directory: DaemonDirectory, restore: Callable[[str], None]) -> None:
    """Does nothing if the mode was not changed."""
    if directory.compute_mode.exists():
        restore(directory.compute_mode.read_text())
        directory.compute_mode.unlink()


def end_daemon(directory: DaemonDirectory, program: Path, seconds: float = END_SECONDS) -> None:
    """Asks the daemon to quit, then ends it by signals. Raises ControlError if it survives them."""
    pid = directory.daemon()
    if pid is None:
        return
    started = read_start_of_running(pid)
    with suppress(ControlError):  # a signal follows
        directory.control(program).run("quit -t 1", seconds=seconds)
    if not processes.gone(pid, started, 1.0) and not processes.end(pid, seconds):
        raise ControlError(f"the MPS daemon of {directory.path}, PID {pid}, does not end")
