"""The accepting side of the broker: the socket of one GPU to which client containers connect, and its connections.

Guarantees: everybody is greeted first of all, since a CUDA process that is not greeted runs without MPS, silently.
Connections are bounded, in all and for each container. A socket takes the name over without a moment in which there
is none.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from gpushare.mps.broker.packets import Peer, has_ended, peer_of
from gpushare.mps.layout import GpuDir
from gpushare.process.procfs import Owner

LOG = logging.getLogger(__name__)
BACKLOG = 1024
"""Whoever comes while no broker accepts fits in here; connect(2) waits where it is full."""
MAX_CONNECTIONS = 2048
"""The connections at the same time. A GPU takes at most 60 contexts; each attaches over one connection, after one
that only looks."""
MAX_CONNECTIONS_PER_CONTAINER = 64
ACCEPTED_AT_ONCE = 64
"""After so many the event loop serves others before it accepts more."""
NO_ROOM_SECONDS = 0.5
"""A broker without descriptors accepts no connection for so long."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


ReadOwners = Callable[[int], Sequence[Owner] | None]
"""The pods that a process' cgroup names, the outermost first; None: it has ended."""


class Listener:
    """The socket of one GPU. `serve`: called with each connection that is kept, its peer and its owners; it closes
    the connection. `failed`: called where nobody can be accepted.
    """

    def __init__(
        self,
        gpu: GpuDir,
        read_owners: ReadOwners,
        serve: Callable[[socket.socket, Peer, Sequence[Owner]], Coroutine[None, None, None]],
        failed: Callable[[OSError], None],
    ) -> None:
        self._gpu = gpu
        self._read_owners = read_owners
        self._serve = serve
        self._failed = failed
        self._listener: socket.socket | None = None
        self._inode = 0
        self._greeting = b""
        self._connections: set[asyncio.Task[None]] = set()
        self._by_container: Counter[Owner | None] = Counter()
        self.waited = 0
        """Connections that had waited at the socket of an earlier broker when this one took it over."""
        self._catches_up = False

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    def is_named(self) -> bool:
        """Tells whether the name that containers see is of this listener's socket."""
        return self._named_inode() == self._inode

    def _named_inode(self) -> int:
        """0: nobody has the name. The inode of a name is not given again while its socket is open."""
        try:
            return self._gpu.attach_control.stat().st_ino
        except OSError:
            return 0

    @property
    def own(self) -> tuple[socket.socket, int] | None:
        """The socket, and the inode of its name; None: it is closed."""
        return (self._listener, self._inode) if self._listener is not None else None

    def open(self, greeting: bytes, kept: tuple[socket.socket, int] | None = None) -> None:
        """`kept`: the socket of an earlier broker, with its name's inode, at which clients may wait. OSError: not yet;
        call it again.
        """
        self._greeting = greeting
        taken = kept is not None and kept[1] == self._named_inode()
        if kept is not None and taken:
            listener, self._inode = kept
        else:
            if kept is not None:
                kept[0].close()
            listener, self._inode = self._bound()
        try:
            listener.listen(BACKLOG)
            listener.setblocking(False)
            if not taken:
                self._gpu.attach_new.replace(self._gpu.attach_control)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._catches_up = taken
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        how = "again, and those who waited there go on" if taken else ""
        LOG.info("GPU %s: containers attach at %s %s", self._gpu.uuid, self._gpu.attach_control, how)

    def _bound(self) -> tuple[socket.socket, int]:
        """A new socket, which has not its name yet, and the inode of that name. OSError."""
        new, sock = self._gpu.attach_new, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            new.unlink(missing_ok=True)
            sock.bind(str(new))
            new.chmod(0o666)
            return sock, new.stat().st_ino
        except OSError:
            sock.close()
            raise

    def close(self, *, remove: bool) -> None:
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        if remove and self.is_named():
            self._gpu.attach_control.unlink(missing_ok=True)
            LOG.info("GPU %s: no container attaches any more", self._gpu.uuid)
        self._listener.close()
        self._listener = None

    async def end_connections(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                spare = os.dup(listener.fileno())  # for reading whose the connection is: else it would be nobody's
                try:
                    sock, _ = listener.accept()
                finally:
                    os.close(spare)
            except BlockingIOError:
                self._catches_up = False
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._pause(listener, error)
                return
            self.waited += self._catches_up
            self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            sock.send(self._greeting)  # first of all: it goes on meanwhile, and who is not greeted runs without MPS
        except OSError:
            sock.close()  # it has hung up
            return
        peer = peer_of(sock)
        owners = self._read_owners(peer.pid) or ()
        if has_ended(sock):
            owners = ()  # of whoever has its PID now
        container = owners[0] if owners else None
        if len(self._connections) >= MAX_CONNECTIONS or (
            self._by_container[container] >= MAX_CONNECTIONS_PER_CONTAINER
        ):
            sock.close()
            return
        self._by_container[container] += 1
        task = asyncio.create_task(self._serve(sock, peer, owners))
        self._connections.add(task)
        task.add_done_callback(partial(self._ended, container))

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Accepts nobody for NO_ROOM_SECONDS: those who wait would keep the event loop busy until there is room."""
        self._failed(error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def go_on() -> None:
            if self._listener is listener:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(NO_ROOM_SECONDS, go_on)

    def _ended(self, container: Owner | None, task: "asyncio.Task[None]") -> None:
        self._connections.discard(task)
        self._by_container[container] -= 1
        if self._by_container[container] <= 0:
            del self._by_container[container]
