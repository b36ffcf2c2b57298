"""What outlives the attach broker of one GPU: the listening socket, and the queue of what is under way.

A CUDA process that finds no listener runs without MPS where the compute mode lets it; one that waits in a backlog is
waited for. And a socket to the MPS server that nobody holds any more hangs the server. So the supervisor has a copy of
both while a broker is away (systemd calls that a file descriptor store), and gives them to the next one.

The supervisor makes the listening socket, so its name is root's. A container with a user namespace of its own may get
the directory by an idmapped mount, through which nobody reaches a file of a user that the mount does not map (EACCES);
the broker's user is beyond the 65,536 that a pod has, and root is always among them.

Guarantees: one listening socket at most, which was made here. Nothing is kept once no client is let in any more, so
nobody waits at a GPU that will not come back.
"""

import os
import socket
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpushare.mps.files import inode_of
from gpushare.mps.layout import GpuDir

BACKLOG = 256
"""All that a GPU serves fit in here twice while no broker accepts; connect(2) waits where it is full. In a longer one
whoever comes behind a crowd waits longer."""


@dataclass(frozen=True, slots=True)
class SocketsOfBroker:
    """`listener`, with the `inode` of its name. What is sent to `putting` is in the queue until it is received from
    `taking`.
    """

    listener: socket.socket
    inode: int
    putting: socket.socket
    taking: socket.socket

    @property
    def all(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        return self.listener, self.putting, self.taking

    def close(self) -> None:
        for sock in self.all:
            sock.close()


class KeptSockets:
    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._kept: SocketsOfBroker | None = None

    def keep(self, descriptors: Sequence[int], inode: int) -> str:
        """Takes these descriptors of a broker, in the place of what was kept; why not, and then closes them."""
        socks: list[socket.socket] = []
        with self._lock:
            refused = ""
            for descriptor in descriptors:
                try:
                    socks.append(socket.socket(fileno=descriptor))
                except OSError as error:
                    refused = f"it is no socket: {error.strerror or error}"
                    with suppress(OSError):
                        socket.close(descriptor)
            refused = refused or self._refused(socks)
            if refused:
                for sock in socks:
                    sock.close()
                return refused
            self._drop()
            self._kept = SocketsOfBroker(socks[0], inode, *socks[1:])
            return ""

    def give(self) -> SocketsOfBroker:
        """Copies, to be closed by the caller: of what is kept, or of new ones where the name is of another socket.

        Raises OSError, also where no client is let in.
        """
        with self._lock:
            if not self._gpu.client_control.exists():
                raise FileNotFoundError("no client is let in")
            if self._kept is None or self._kept.inode != inode_of(self._gpu.attach_control):
                self._drop()
                self._kept = self._made()
            kept = self._kept
            return SocketsOfBroker(kept.listener.dup(), kept.inode, kept.putting.dup(), kept.taking.dup())

    def drop(self) -> None:
        """Whoever waits at the socket is hung up on, once the broker's own copy is closed, too."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _made(self) -> SocketsOfBroker:
        """New ones. The name is made in the directory that clients see, and has its SELinux label by that. OSError."""
        new, listener = self._gpu.attach_new, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            new.unlink(missing_ok=True)
            listener.bind(str(new))
            inode = opened_to_all(new)
            listener.listen(BACKLOG)
            putting, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            listener.close()
            raise
        sockets = SocketsOfBroker(listener, inode, putting, taking)
        try:
            new.replace(self._gpu.attach_control)
        except OSError:
            sockets.close()
            raise
        return sockets

    def _refused(self, socks: Sequence[socket.socket]) -> str:
        if len(socks) != 3:
            return "it is not a listening socket with the two ends of a queue"
        if any((sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) for sock in socks):
            return "it is no Unix socket of packets"
        listening = [bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) for sock in socks]
        if listening != [True, False, False]:
            return "it does not listen" if not listening[0] else "its queue is none"
        if socks[0].getsockname() != str(self._gpu.attach_new):
            return "it has another name"
        # Under the lock: whoever refuses new clients removes the name first and drops the socket then.
        return "" if self._gpu.client_control.exists() else "no client is let in"


def opened_to_all(path: Path) -> int:
    """Lets everybody connect to a socket's file, and returns its inode. The broker may write to its directory, too, so
    the mode is not changed by the name: a link put in its place would lead to another file of root's. OSError.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        made = os.fstat(descriptor)
        if not stat.S_ISSOCK(made.st_mode) or made.st_uid != os.geteuid() or made.st_nlink != 1:
            raise PermissionError(f"{path} is not the socket that was made there")
        Path(f"/proc/self/fd/{descriptor}").chmod(0o666)
        return made.st_ino
    finally:
        os.close(descriptor)
