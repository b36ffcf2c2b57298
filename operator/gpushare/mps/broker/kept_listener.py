"""The broker's side of the listening socket that the supervisor keeps: hands it over, and gets it back."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.broker.packets import Packet, receive, send
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import InvalidError, ListenerAction, ListenerAnswer, ListenerRequest, decode, encode

SECONDS = 12.0
"""The time for the supervisor's answer, as for that to a turn: it may be in the midst of one."""


async def keep(gpu: GpuDir, listener: socket.socket, inode: int) -> None:
    """The supervisor has a copy of the socket from now on. `inode`: of its name.

    Raises OSError, TimeoutError, ProtocolError.
    """
    request = ListenerRequest(action=ListenerAction.KEEP, inode=inode)
    async with _asked(gpu, request, listener.fileno()) as packet:
        refused = _answer(packet).refused
        if refused:
            raise ProtocolError(f"the supervisor keeps no listener: {refused}")


async def take(gpu: GpuDir) -> tuple[socket.socket, int] | None:
    """The socket that an earlier broker left, and its name's inode. OSError, TimeoutError, ProtocolError."""
    async with _asked(gpu, ListenerRequest(action=ListenerAction.GIVE)) as packet:
        inode = _answer(packet).inode
        if len(packet.descriptors) != 1:
            return None
        return socket.socket(fileno=os.dup(packet.descriptors[0])), inode


@asynccontextmanager
async def _asked(gpu: GpuDir, request: ListenerRequest, *descriptors: int) -> AsyncIterator[Packet]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        async with asyncio.timeout(SECONDS):
            sock.connect(str(gpu.turns))
            await send(sock, encode(request), descriptors)
            packet = await receive(sock)
    try:
        yield packet
    finally:
        packet.close()


def _answer(packet: Packet) -> ListenerAnswer:
    try:
        return decode(packet.data, ListenerAnswer)
    except InvalidError as error:
        raise ProtocolError(f"the supervisor's answer about the listener: {error}") from error
