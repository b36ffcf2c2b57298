"""The accepting side of the broker: the socket of one GPU to which client containers connect, and its connections.

Guarantees: everybody is greeted first of all, since a CUDA process that is not greeted runs without MPS, silently.
Connections are bounded, in all and for each pod (`connections`), and whoever is hung up on is told. The socket is the
supervisor's (`kept_sockets`), and outlives this process.
"""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gpushare.mps.broker.admission import AttachDenied
from gpushare.mps.broker.connections import (
    CONNECTS_PER_SECOND,
    MAX_CONNECTIONS,
    MAX_PROCESSES_TIMED,
    ConnectRates,
    NoRoom,
    PodConnections,
    room_for,
)
from gpushare.mps.broker.kept_sockets import AttachSockets, UnderWay
from gpushare.mps.files import inode_of
from gpushare.mps.layout import GpuDir
from gpushare.mps.packets import Peer, peer_of, pid_of
from gpushare.mps.wire import QueuedSocket, RefusedAttach
from gpushare.process.procfs import Owner

LOG = logging.getLogger(__name__)
BACKLOG = 256
"""All that a GPU serves fit in here twice while no broker accepts; connect(2) waits where it is full. In a longer one
whoever comes behind a crowd waits longer."""
MAX_TASKS = 2 * MAX_CONNECTIONS
"""With those that are just being closed."""
TOO_FAST = f"it connects more than {CONNECTS_PER_SECOND:g} times a second"
GAVE_WAY = "the broker has no room for more connections, and its pod held the most of them: the newest gave way"
ACCEPTED_AT_ONCE = 16
"""After so many the event loop serves others before it accepts more."""
NO_ROOM_SECONDS = 0.5
"""A broker without descriptors accepts no connection for so long."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


ReadOwners = Callable[[int], Sequence[Owner] | None]
"""The pods that a process' cgroup names, the outermost first; None: it has ended."""


class AttachListener:
    """The socket of one GPU. `serve`: called with each connection that is kept, its peer and its owners, and what an
    earlier broker knew of it, where it came to one; it closes the connection. `looked`: called with each
    connection that had been hung up before it was accepted, which is closed after that. `failed`: called where nobody
    can be accepted. `refused`: called with the PID of each process that is hung up on. `needs`: the connections that
    the processes of each pod need, see `PodConnections`.
    """

    def __init__(
        self,
        gpu: GpuDir,
        read_owners: ReadOwners,
        serve: Callable[[socket.socket, Peer, Sequence[Owner], QueuedSocket | None], Coroutine[None, None, None]],
        looked: Callable[[socket.socket], None],
        failed: Callable[[OSError], None],
        refused: Callable[[int, AttachDenied], None],
        needs: Callable[[], Mapping[str, int]],
        peer_of: Callable[[socket.socket], Peer] = peer_of,
        room: int = MAX_CONNECTIONS,
    ) -> None:
        self._gpu = gpu
        self._read_owners = read_owners
        self._serve = serve
        self._looked = looked
        self._failed = failed
        self._refused = refused
        self._needs = needs
        self._peer_of = peer_of
        self._room = room
        self._sockets: AttachSockets | None = None
        self._greeting = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[str, dict[asyncio.Task[None], tuple[socket.socket, int]]] = {}
        """The connections of each pod that did not give way, the newest last, with their PIDs."""
        self._leaving: set[socket.socket] = set()
        self._rates = ConnectRates()
        self._pods: dict[int, str] = {}
        self.waited = 0
        """Connections that had waited at the socket of an earlier broker when this one took it over."""
        self._catches_up = False

    @property
    def is_open(self) -> bool:
        return self._sockets is not None

    def is_named(self) -> bool:
        """Tells whether the name that containers see is of this listener's socket."""
        return self._sockets is not None and self.named() == self._sockets.inode

    def named(self) -> int:
        """The inode of that name; 0: there is none. It is not given again while its socket is open."""
        return inode_of(self._gpu.attach_control)

    @property
    def own(self) -> AttachSockets | None:
        """None: it is closed."""
        return self._sockets

    @property
    def under_way(self) -> UnderWay:
        return self._sockets.under_way if self._sockets is not None else UnderWay()

    def open(self, greeting: bytes, sockets: AttachSockets, *, taken: bool) -> None:
        """`taken`: an earlier broker had this socket, and clients may wait at it. OSError: not yet; call it again."""
        sockets.listener.listen(BACKLOG)  # also so that clients are shown this process as their peer
        self._greeting, self._sockets, self._catches_up = greeting, sockets, taken
        asyncio.get_running_loop().add_reader(sockets.listener, self._accept, sockets.listener)
        how = "again, and those who waited there go on" if taken else ""
        LOG.info("GPU %s: containers attach at %s %s", self._gpu.uuid, self._gpu.attach_control, how)

    def close(self, *, remove: bool) -> None:
        if self._sockets is None:
            return
        asyncio.get_running_loop().remove_reader(self._sockets.listener)
        if remove and self.is_named():
            self._gpu.attach_control.unlink(missing_ok=True)
            LOG.info("GPU %s: no container attaches any more", self._gpu.uuid)
        self._sockets.close()
        self._sockets = None

    def gave_way(self, sock: socket.socket) -> bool:
        """Tells whether a connection was shut down here, to make room, and not by its process."""
        return sock in self._leaving

    async def end_connections(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
        """Everybody is greeted, and whoever finds no room is hung up on after that."""
        sock.setblocking(False)
        try:
            sock.send(self._greeting)  # first of all: it goes on meanwhile, and who is not greeted runs without MPS
        except OSError:
            with sock:  # it has hung up
                self._looked(sock)
            return
        pid = pid_of(sock)
        if self._rates.exceeds(pid, time.monotonic()):
            self._hang_up(sock, pid, self._pods.get(pid, ""), TOO_FAST)
            return
        self._admit(sock, *self.who(sock), None)

    def go_on(self, sock: socket.socket, queued: QueuedSocket) -> None:
        """Serves a client of an earlier broker, which greeted it; the process is the one that it was then."""
        peer, owners = self.who(sock)
        if (peer.pid, peer.started) != (queued.pid, queued.started):  # before Linux 6.5 another may have that PID
            peer, owners = replace(peer, started=None), ()
        self._admit(sock, peer, owners, queued)

    def _admit(self, sock: socket.socket, peer: Peer, owners: Sequence[Owner], queued: QueuedSocket | None) -> None:
        pid, pod = peer.pid, owners[0].pod_uid if owners else ""
        self._note(pid, pod)
        room = room_for(pod, self._holders(), self._room)
        if isinstance(room, NoRoom) or len(self._tasks) >= MAX_TASKS:
            why = room.why if isinstance(room, NoRoom) else "too many connections are being closed"
            self._hang_up(sock, pid, pod, why)
            return
        if room.instead:
            self._give_way(room.instead)
        task = asyncio.create_task(self._serve(sock, peer, owners, queued))
        self._tasks.add(task)
        self._held.setdefault(pod, {})[task] = sock, pid
        task.add_done_callback(partial(self._ended, pod, sock))

    def who(self, sock: socket.socket) -> tuple[Peer, Sequence[Owner]]:
        """Who connected, and its pods; none for a process that has ended."""
        peer = self._peer_of(sock)
        owners = self._read_owners(peer.pid) or ()
        ended = peer.started is None or self._peer_of(sock) != peer
        return peer, () if ended else owners  # else of whoever has its PID now

    def _note(self, pid: int, pod: str) -> None:
        """The pod of a process, in case that it connects too fast to be looked at again."""
        self._pods.pop(pid, None)
        if len(self._pods) >= MAX_PROCESSES_TIMED:
            del self._pods[next(iter(self._pods))]
        self._pods[pid] = pod

    def _holders(self) -> dict[str, PodConnections]:
        needs = self._needs()
        return {pod: PodConnections(len(self._held.get(pod, ())), needs.get(pod, 0)) for pod in {*self._held, *needs}}

    def _hang_up(self, sock: socket.socket, pid: int, pod: str, why: str) -> None:
        sock.close()
        self._refused(pid, AttachDenied(RefusedAttach.CONNECTIONS, why, Owner(pod, "")))

    def _give_way(self, pod: str) -> None:
        """The pod's newest connection ends. It is shut down, and its task ends by itself: cut off in the midst of an
        attach, it would hang the MPS server.
        """
        sock, pid = self._held[pod].pop(next(reversed(self._held[pod])))
        self._leaving.add(sock)
        self._forget_empty(pod)
        with suppress(OSError):  # it has hung up
            sock.shutdown(socket.SHUT_RDWR)
        self._refused(pid, AttachDenied(RefusedAttach.CONNECTIONS, GAVE_WAY, Owner(pod, "")))

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Accepts nobody for NO_ROOM_SECONDS: those who wait would keep the event loop busy until there is room."""
        self._failed(error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def go_on() -> None:
            if self._sockets is not None and self._sockets.listener is listener:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(NO_ROOM_SECONDS, go_on)

    def _ended(self, pod: str, sock: socket.socket, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._leaving.discard(sock)
        self._held.get(pod, {}).pop(task, None)
        self._forget_empty(pod)

    def _forget_empty(self, pod: str) -> None:
        if not self._held.get(pod, True):
            del self._held[pod]
