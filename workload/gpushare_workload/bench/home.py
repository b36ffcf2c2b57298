"""The private directory of a benchmark's own daemon, and what an earlier benchmark left behind that was killed.

<temporary directory>/gpushare-bench-<uid>/   0700, ours
    <gpu uuid>.lock     held (flock) for as long as a benchmark uses that GPU, however it ends
    <gpu uuid>/
        compute-mode    the mode to restore; there only while it is changed
        pipe/ log/      the daemon's; pipe/nvidia-cuda-mps-control.pid is its own pid file

A process is taken for a daemon of ours only if its command line and its environment say so, never for its PID alone.
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

from gpushare_workload.bench import processes
from gpushare_workload.bench.control import DaemonError, ask, directories
from gpushare_workload.bench.obstacles import PROGRAM

END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Home:
    """One daemon's directory."""

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
        """Written before the mode is changed, removed once it is restored."""
        return self.path / "compute-mode"

    def daemon(self) -> int | None:
        """The PID of the daemon that serves this directory; None: none does."""
        try:
            pid = int((self.pipe / f"{PROGRAM}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if processes.is_daemon_of(pid, PROGRAM, self.pipe) else None


def base(temporary: Path | None = None) -> Path:
    """The directory of all homes of this user, made where it is not there.

    Raises ValueError where somebody else made it: /tmp is everybody's.
    """
    path = (temporary or Path(tempfile.gettempdir())) / f"gpushare-bench-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"{path} is not a directory of yours alone (0700): remove it, or set TMPDIR to another place")
    return path


@contextmanager
def alone(parent: Path, uuid: str) -> Iterator[None]:
    """Nobody else's benchmark on this GPU meanwhile. Raises ValueError naming the one that is."""
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


def make(home: Home) -> None:
    for path in (home.path, home.pipe, home.log):
        path.mkdir(mode=0o700)


def clear_leftovers(
    home: Home, program: str, restore: Callable[[str], None], seconds: float = END_SECONDS
) -> list[str]:
    """End what is left of a killed benchmark, restore the compute mode by `restore`; call it while `alone`.

    Returns what was done. Raises DaemonError where a daemon does not end.
    """
    if not home.path.exists():
        return []
    daemon = home.daemon()
    end_daemon(home, program, seconds)
    restore_mode(home, restore)
    shutil.rmtree(home.path)
    ended = f", and ended PID {daemon}" if daemon else ""
    return [f"removed {home.path}, left by a benchmark that was killed{ended}"]


def restore_mode(home: Home, restore: Callable[[str], None]) -> None:
    """Does nothing where the mode was not changed."""
    if home.compute_mode.exists():
        restore(home.compute_mode.read_text())
        home.compute_mode.unlink()


def end_daemon(home: Home, program: str, seconds: float = END_SECONDS) -> None:
    """In good order where it still answers. Raises DaemonError when it outlives all of it."""
    pid = home.daemon()
    if pid is None:
        return
    started = processes.start_time(pid)
    environment = {**os.environ, **directories(home.pipe, home.log)}
    with suppress(DaemonError, OSError):  # then by a signal
        ask(program, environment, "quit -t 1", seconds=seconds)
    if not processes.gone(pid, started, 1.0) and not processes.end(pid, seconds):
        raise DaemonError(f"the control daemon of {home.path}, PID {pid}, does not end")
