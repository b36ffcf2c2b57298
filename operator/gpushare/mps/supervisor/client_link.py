"""client/control: the name by which the attach broker reaches a daemon, a hard link to the daemon's own socket.

A daemon makes a new socket at each start, and the link is renewed then. The renewal is atomic: while
the name is there, the broker takes no daemon that starts anew for one that has gone.
"""

from gpushare.mps.files import write_text
from gpushare.mps.layout import GpuDir

_NEW = ".control.new"


def is_current(gpu: GpuDir) -> bool:
    """Tells whether clients reach the daemon's latest socket."""
    try:
        return gpu.client_control.samefile(gpu.control)
    except FileNotFoundError:
        return False


def exists(gpu: GpuDir) -> bool:
    return gpu.client_control.exists()


def renew(gpu: GpuDir, share: str) -> None:
    """Let clients of `share` reach the daemon. Raises OSError, and then keeps the old link."""
    gpu.client.mkdir(mode=0o755, exist_ok=True)
    write_text(gpu.client_share, share, mode=0o644)
    new = gpu.client / _NEW
    new.unlink(missing_ok=True)
    new.hardlink_to(gpu.control)
    new.replace(gpu.client_control)


def remove(gpu: GpuDir) -> None:
    """Refuse new clients."""
    gpu.client_control.unlink(missing_ok=True)
