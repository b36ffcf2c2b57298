"""Packets with descriptors over non-blocking SEQPACKET sockets, for coroutines."""

import array
import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpushare.mps.attach_protocol import MAX_MESSAGE_BYTES, ProtocolError
from gpushare.process.procfs import read_start_of_running

T = TypeVar("T")
_INT_BYTES = array.array("i").itemsize
SO_PEERPIDFD = 77
"""This option is there since Linux 6.5; the socket module does not name it yet."""
_GONE = (errno.ESRCH, errno.EINVAL, errno.ENODATA)
SOON_SECONDS = 0.001
"""The supervisor gives a turn, and the MPS daemon a socket, in 0.2 to 0.5 ms (H100)."""
MAX_DESCRIPTORS = 4
"""Received at once; the kernel closes those beyond, and the packet is refused."""

MOST_UNREAD = 4
"""A request, and what comes with it."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One message. `descriptors` belong to whoever received it: pass them on or close them."""

    data: bytes
    descriptors: tuple[int, ...] = ()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, as the kernel noted at connect(2): PID in our PID namespace (0 from outside of it), and UID.

    `started`: when the process did, in clock ticks since boot; None: it had ended when it was asked for.
    """

    pid: int
    uid: int
    started: int | None


def pid_of(sock: socket.socket) -> int:
    """Of whom connected, as in `Peer`; whether that process still runs is not asked."""
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def peer_of(sock: socket.socket, option: int = SO_PEERPIDFD) -> Peer:
    """Call it as soon as the connection is accepted: before Linux 6.5 the process is known by its PID alone, which may
    be another's once it has ended. Takes one descriptor for a moment; without one the process counts as ended.

    `option`: the socket option that gives a pidfd of the peer, if the kernel knows it.
    """
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        return Peer(pid, uid, _started(sock, pid, option))
    except OSError:
        return Peer(pid, uid, None)


def has_ended(sock: socket.socket, peer: Peer, option: int = SO_PEERPIDFD) -> bool:
    """Tells whether the process that connected has ended: its PID may be another's, and whoever speaks now is someone
    else. OSError: that is not known now. `option` as in `peer_of`.
    """
    return peer.started is None or _started(sock, peer.pid, option) != peer.started


def _started(sock: socket.socket, pid: int, option: int) -> int | None:
    """When the process of a connection started; None: it has ended. OSError: that is not known.

    The PID was its own while it was read, if the process that the pidfd holds has not ended since.
    """
    started = read_start_of_running(pid)
    try:
        descriptor = _pidfd(sock, pid, option)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    try:
        ending = select.poll()
        ending.register(descriptor, select.POLLIN)
        return None if ending.poll(0) else started
    finally:
        os.close(descriptor)


def _pidfd(sock: socket.socket, pid: int, option: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, option)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(pid)


def comes_soon(sock: socket.socket) -> bool:
    """Waits at most SOON_SECONDS for a packet, without the event loop: for an answer of our own daemons, which mostly
    comes sooner than the loop takes to watch a socket and to let it be. Never for a client, which could be silent.
    """
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    return bool(ready.poll(SOON_SECONDS * 1000))


async def receive(sock: socket.socket, *, peek: bool = False) -> Packet:
    """The next packet; one without data and descriptors when the other side hung up. OSError, ProtocolError.

    `peek`: it is also received the next time, with other descriptors for the same files.
    """
    loop = asyncio.get_running_loop()
    return await _when_possible(
        lambda: receive_now(sock, peek=peek), partial(loop.add_reader, sock), partial(loop.remove_reader, sock)
    )


def receive_now(sock: socket.socket, *, peek: bool = False) -> Packet:
    """As `receive`. BlockingIOError: nothing is there yet."""
    data, control, flags, _ = sock.recvmsg(
        MAX_MESSAGE_BYTES,
        socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT_BYTES),
        socket.MSG_CMSG_CLOEXEC | (socket.MSG_PEEK if peek else 0),
    )
    descriptors = array.array("i")
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) // _INT_BYTES * _INT_BYTES])
    packet = Packet(data, tuple(descriptors))
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        packet.close()
        raise ProtocolError(f"a message has more than {MAX_MESSAGE_BYTES} bytes or {MAX_DESCRIPTORS} descriptors")
    return packet


async def plain(sock: socket.socket, *, peek: bool = False) -> bytes:
    """A packet's data; empty when the other side hung up. ProtocolError where descriptors came with it. `peek`: as of
    `receive`.
    """
    packet = await receive(sock, peek=peek)
    packet.close()
    if packet.descriptors:
        raise ProtocolError("descriptors came with a message that has none")
    return packet.data


def has_hung_up(sock: socket.socket) -> bool:
    """Also while something that it said before is unread."""
    events = select.poll()
    events.register(sock, select.POLLRDHUP)
    return bool(events.poll(0))


def drop_unread(sock: socket.socket) -> None:
    """For a connection that is then closed: with something unread its peer would get ECONNRESET, not an end."""
    with suppress(OSError):
        for _ in range(MOST_UNREAD):
            if not sock.recv(1, socket.MSG_DONTWAIT):
                return


def send_now(sock: socket.socket, data: bytes, descriptors: Collection[int] = ()) -> None:
    """Sends one packet whole. BlockingIOError: not without waiting. OSError when the other side hung up."""
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([data], control, socket.MSG_NOSIGNAL)


async def send(sock: socket.socket, data: bytes, descriptors: Collection[int] = ()) -> None:
    """The same as `send_now`, as soon as it can be."""
    loop = asyncio.get_running_loop()
    await _when_possible(
        lambda: send_now(sock, data, descriptors), partial(loop.add_writer, sock), partial(loop.remove_writer, sock)
    )


async def _when_possible(attempt: Callable[[], T], watch: Callable[..., object], unwatch: Callable[[], object]) -> T:
    """`attempt` again each time the socket is ready, until it no longer blocks."""
    while True:
        try:
            return attempt()
        except BlockingIOError:
            pass
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch(_set, ready)
        try:
            await ready
        finally:
            unwatch()


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
