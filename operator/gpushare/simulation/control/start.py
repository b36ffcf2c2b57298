"""nvidia-cuda-mps-control -d | -f: starts the simulated control daemon, and cleans up after it has quit."""

import contextlib
import fcntl
import os
import signal
import socket

from gpushare.simulation.control.daemon import ControlDaemon
from gpushare.simulation.control.gpu import open_gpu
from gpushare.simulation.cuda_errors import NO_DEVICE
from gpushare.simulation.paths import pipe_directory
from gpushare.simulation.wire import Disconnected

DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"


def start(arguments: list[str], uid: int) -> int:
    """Become the daemon: `-f` in the foreground, `-d` in the background. `-multiuser-server` needs `uid` 0."""
    if "-multiuser-server" in arguments and uid != 0:
        print("Only root user may enable -multiuser-server!")
        return 1
    if not {"-d", "-f"} & set(arguments):
        print(f"Invalid argument: {arguments[0]}")
        return 1
    return become(ControlDaemon, "-d" in arguments, "-multiuser-server" in arguments)


def become(daemon: type[ControlDaemon], background: bool, multiuser: bool) -> int:
    """The daemon, until it quits; the exit status."""
    pipe = pipe_directory()
    if not _sees_a_gpu(os.environ.get("CUDA_VISIBLE_DEVICES")):
        return NO_DEVICE
    os.makedirs(pipe, exist_ok=True)  # noqa: PTH103
    lock = os.open(f"{pipe}/control_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("An instance of this daemon is already running")
        return 1
    listeners = {_listen(f"{pipe}/control", 0o666): False, _listen(f"{pipe}/control_privileged", 0o755): True}
    log_directory = os.environ.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOG_DIRECTORY
    os.makedirs(log_directory, exist_ok=True)  # noqa: PTH103
    if background and _parent_of_daemon():
        return 0
    log_to = log_directory if background else None
    _serve(daemon(pipe, log_to, multiuser), pipe, listeners)
    return 0


def _sees_a_gpu(visible: str | None) -> bool:
    """A daemon ends silently without its GPU (measured for an unknown UUID)."""
    try:
        open_gpu(visible, lambda _: None).close()
    except Disconnected:
        return False
    return True


def _listen(path: str, mode: int) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, mode)  # noqa: PTH101
    listener.listen(128)
    return listener


def _parent_of_daemon() -> bool:
    """Fork. True in the parent, which may exit; False in the daemon, which has left its terminal and pipes."""
    if os.fork():
        return True
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    return False


def _serve(daemon: ControlDaemon, pipe: str, listeners: dict[socket.socket, bool]) -> None:
    """Serve until quit, which leaves the sockets and the lock behind. A signal ends the daemon at once and leaves all
    files; the server notices that and ends too (both measured)."""
    fifo, pid_file = f"{pipe}/log", f"{pipe}/nvidia-cuda-mps-control.pid"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(fifo)
    with open(pid_file, "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    daemon.log(f"Starting control daemon using socket {pipe}/control")
    daemon.log(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}")
    daemon.run(listeners)
    daemon.end()
    for path in (fifo, pid_file):
        os.unlink(path)  # noqa: PTH108
