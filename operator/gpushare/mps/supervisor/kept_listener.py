"""The attach broker's listening socket of one GPU, kept while its broker is away.

A CUDA process that finds no listener runs without MPS where the compute mode lets it; one that waits in a backlog is
waited for. So a broker leaves its socket here (systemd calls that a file descriptor store), and the next one gets it
back, with those who wait at it.

Guarantees: one socket at most, which listens, is of the broker's kind, and has the name that a broker gives it. None is
kept once no client is let in any more, so nobody waits at a GPU that will not come back.
"""

import socket
import threading

from gpushare.mps.layout import GpuDir


class KeptListener:
    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._kept: socket.socket | None = None
        self._inode = 0

    def keep(self, descriptor: int, inode: int) -> str:
        """Takes the descriptor, in the place of what was kept; why not, and then closes it. `inode`: of its name."""
        with self._lock:
            sock = None
            try:
                sock = socket.socket(fileno=descriptor)
                refused = self._refused(sock)
            except OSError as error:
                refused = f"it is no socket: {error.strerror or error}"
            if refused or sock is None:
                if sock is not None:
                    sock.close()
                return refused
            self._close()
            self._kept, self._inode = sock, inode
            return ""

    def give(self) -> tuple[socket.socket, int] | None:
        """A copy of the socket, to be closed by the caller, and its name's inode; None: there is none."""
        with self._lock:
            return None if self._kept is None else (self._kept.dup(), self._inode)

    def drop(self) -> None:
        """Whoever waits at it is hung up on, once the broker's own copy is closed, too."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _refused(self, sock: socket.socket) -> str:
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            return "it is no Unix socket of packets"
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return "it does not listen"
        if sock.getsockname() != str(self._gpu.attach_new):
            return "it has another name"
        # Under the lock: whoever refuses new clients removes the name first and drops the socket then.
        return "" if self._gpu.client_control.exists() else "no client is let in"
