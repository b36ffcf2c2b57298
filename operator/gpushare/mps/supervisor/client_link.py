"""client/control: the one name under which clients reach a daemon, a hard link to the daemon's own socket.

A daemon makes a new socket at every start, so that the link is renewed then; containers that run already see the new
link in their read-only mount. The renewal is atomic: at no moment is there no name, since a CUDA process that finds
none runs without MPS, and without limits, silently.
"""

from gpushare.mps.layout import GpuDir

_NEW = ".control.new"


def is_current(gpu: GpuDir) -> bool:
    """Whether clients reach the socket that the daemon made last."""
    try:
        return gpu.client_control.samefile(gpu.control)
    except FileNotFoundError:
        return False


def exists(gpu: GpuDir) -> bool:
    return gpu.client_control.exists()


def renew(gpu: GpuDir) -> None:
    """Let clients reach the daemon. Errors: OSError; then the old link still stands."""
    gpu.client.mkdir(mode=0o755, exist_ok=True)
    new = gpu.client / _NEW
    new.unlink(missing_ok=True)
    new.hardlink_to(gpu.control)
    new.replace(gpu.client_control)


def remove(gpu: GpuDir) -> None:
    """Let no new client in."""
    gpu.client_control.unlink(missing_ok=True)
