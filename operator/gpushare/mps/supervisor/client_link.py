"""client/control: the name by which clients reach a daemon, a hard link to the daemon's own socket.

A daemon makes a new socket at each start, and the link is renewed then. Containers that run already see the new link in
their read-only mount. The renewal is atomic, so the name exists at every moment: a CUDA process that does not find it
would silently run without MPS, and without limits.
"""

from gpushare.mps.layout import GpuDir

_NEW = ".control.new"


def is_current(gpu: GpuDir) -> bool:
    """Whether clients reach the daemon's latest socket."""
    try:
        return gpu.client_control.samefile(gpu.control)
    except FileNotFoundError:
        return False


def exists(gpu: GpuDir) -> bool:
    return gpu.client_control.exists()


def renew(gpu: GpuDir) -> None:
    """Let clients reach the daemon. Raises OSError, and then keeps the old link."""
    gpu.client.mkdir(mode=0o755, exist_ok=True)
    new = gpu.client / _NEW
    new.unlink(missing_ok=True)
    new.hardlink_to(gpu.control)
    new.replace(gpu.client_control)


def remove(gpu: GpuDir) -> None:
    """Refuse new clients."""
    gpu.client_control.unlink(missing_ok=True)
