"""What the broker of one GPU leaves to the next one, in the hands of the supervisor: its listening socket, and a queue
of what is under way.

The queue is a pair of connected sockets. What is put into it belongs to the kernel until it is taken out, so it is
there also after a broker that was killed at any moment:

- the connection of a client that was greeted, until it has attached, which goes on at the next broker;
- a connection to the MPS daemon that was asked for a client's socket to the server, until that socket is in the queue;
- that socket, until the server has heard its client. One that nobody holds any more hangs the server (measured).
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.layout import GpuDir
from gpushare.mps.packets import Packet, receive, receive_now, send, send_now
from gpushare.mps.wire import (
    InvalidError,
    QueuedKind,
    QueuedSocket,
    SocketsAction,
    SocketsAnswer,
    SocketsRequest,
    decode,
    encode,
)

SECONDS = 12.0
"""The time for the supervisor's answer, as for that to a turn: it may be in the midst of one."""
MOST_QUEUED = 128
"""Also a bound of what taking one out costs: it goes by all others."""
MOST_CLIENTS = 120
"""What the processes of a GPU's 60 clients need. No number of clients that wait takes the room of the sockets to MPS,
of which there are few at a time."""


class UnderWay:
    """The queue. What it has no room for ends with this broker."""

    def __init__(self, ends: tuple[socket.socket, socket.socket] | None = None) -> None:
        """Without `ends` nothing is kept."""
        self._ends = ends
        self._number = 0
        self._queued: dict[int, str] = {}
        """The numbers in the queue; of a client's connection with its pod."""

    @property
    def ends(self) -> tuple[socket.socket, ...]:
        return self._ends or ()

    def close(self) -> None:
        for end in self.ends:
            end.close()

    @contextmanager
    def holding(self, sock: socket.socket, queued: QueuedSocket, pod: str, most: int) -> Iterator[int]:
        """The connection of a client is in the queue while the block runs, and stays there where that is cancelled: the
        next broker has it then. Gives its number; 0: `most` of its pod are in the queue already.
        """
        number = self.put(sock, queued, pod) if list(self._queued.values()).count(pod) < most else 0
        try:
            yield number
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.take_out(number)
            raise
        self.take_out(number)

    def put(self, sock: socket.socket, queued: QueuedSocket, pod: str = "") -> int:
        """The number by which it is taken out; 0: it is not in the queue."""
        room = MOST_CLIENTS if queued.kind is QueuedKind.CLIENT else MOST_QUEUED
        if self._ends is None or len(self._queued) >= room:
            return 0
        self._number += 1
        if not _put(self._ends[0], encode(replace(queued, number=self._number)), sock.fileno()):
            return 0
        self._queued[self._number] = pod
        return self._number

    def take_out(self, number: int) -> None:
        """Those before it go to the end of the queue."""
        if self._ends is None or number not in self._queued:
            return
        for _ in range(len(self._queued)):
            packet = _taken(self._ends[1])
            if packet is None:
                break
            queued = _queued(packet)
            if queued is not None and queued.number != number:
                _put(self._ends[0], packet.data, packet.descriptors[0])
            packet.close()
            if queued is not None and queued.number == number:
                break
        self._queued.pop(number)

    def left(self) -> list[tuple[QueuedSocket, socket.socket]]:
        """What an earlier broker left, which is in the queue no more: to be called before anything is put into it."""
        left = []
        while self._ends is not None and (packet := _taken(self._ends[1])) is not None:
            queued = _queued(packet)
            if queued is None:
                packet.close()
                continue
            sock = socket.socket(fileno=packet.descriptors[0])
            sock.setblocking(False)
            left.append((queued, sock))
        return left


@dataclass(frozen=True, slots=True)
class AttachSockets:
    """The listening socket with the inode of its name, and the queue."""

    listener: socket.socket
    inode: int
    under_way: UnderWay = field(default_factory=UnderWay)

    def close(self) -> None:
        self.listener.close()
        self.under_way.close()


async def keep(gpu: GpuDir, sockets: AttachSockets) -> None:
    """The supervisor has a copy from now on. OSError, TimeoutError, ProtocolError."""
    request = SocketsRequest(action=SocketsAction.KEEP, inode=sockets.inode)
    descriptors = [sock.fileno() for sock in (sockets.listener, *sockets.under_way.ends)]
    async with _asked(gpu, request, *descriptors):
        pass


async def take(gpu: GpuDir) -> AttachSockets:
    """Those that the supervisor keeps, or new ones. OSError, TimeoutError, ProtocolError."""
    async with _asked(gpu, SocketsRequest(action=SocketsAction.GIVE)) as packet:
        if len(packet.descriptors) != 3:
            raise ProtocolError(f"the supervisor gives {len(packet.descriptors)} sockets")
        listener, putting, taking = (socket.socket(fileno=os.dup(number)) for number in packet.descriptors)
        for sock in (listener, putting, taking):
            sock.setblocking(False)
        return AttachSockets(listener, _answer(packet).inode, UnderWay((putting, taking)))


@asynccontextmanager
async def _asked(gpu: GpuDir, request: SocketsRequest, *descriptors: int) -> AsyncIterator[Packet]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        async with asyncio.timeout(SECONDS):
            sock.connect(str(gpu.turns))
            await send(sock, encode(request), descriptors)
            packet = await receive(sock)
    try:
        refused = _answer(packet).refused
        if refused:
            raise ProtocolError(f"the supervisor keeps and gives no sockets: {refused}")
        yield packet
    finally:
        packet.close()


def _answer(packet: Packet) -> SocketsAnswer:
    try:
        return decode(packet.data, SocketsAnswer)
    except InvalidError as error:
        raise ProtocolError(f"the supervisor's answer about the broker's sockets: {error}") from error


def _put(end: socket.socket, data: bytes, descriptor: int) -> bool:
    with suppress(OSError):  # BlockingIOError: it is full
        send_now(end, data, [descriptor])
        return True
    return False


def _taken(end: socket.socket) -> Packet | None:
    """None: there is nothing, or the queue was closed."""
    try:
        packet = receive_now(end)
    except (OSError, ProtocolError):
        return None
    return packet if packet.data else None


def _queued(packet: Packet) -> QueuedSocket | None:
    try:
        return decode(packet.data, QueuedSocket) if len(packet.descriptors) == 1 else None
    except InvalidError:
        return None
