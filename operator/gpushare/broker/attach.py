"""One connection to the broker, from its greeting to its end.

Guarantees: nothing reaches the MPS daemon before the peer has asked to attach, and no command ever does; descriptors
pass from the daemon to the peer alone; the daemon sees the broker's credentials, never the peer's. A peer that says
nothing costs one connection of bounded time.

The peer's own socket to the MPS server, which the daemon passes through here, is not looked at.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from gpushare.broker.packets import Packet, receive, send
from gpushare.mps.attach_protocol import CREDENTIALS, ProtocolError, Request, check_credentials, parse_request

REQUEST_SECONDS = 5.0
"""A CUDA process asks within milliseconds of its connection."""
DAEMON_SECONDS = 5.0
"""For the daemon's greeting, which it sends at once, unless it is wedged."""

Connect = Callable[[], Awaitable[socket.socket]]
"""A new connection to the daemon. OSError where none listens."""


class AttachRefusedError(Exception):
    """The peer asked for something that the broker never passes on. The text says what."""


async def read_request(peer: socket.socket, greeting: bytes) -> bool:
    """Greets the peer as the daemon would. True once it asks to attach; False when it only looked and hung up.

    Raises AttachRefusedError for control commands, ProtocolError for anything else, TimeoutError after REQUEST_SECONDS.
    """
    async with asyncio.timeout(REQUEST_SECONDS):
        await send(peer, greeting)
        first = await _plain(peer)
        if not first:
            return False
        check_credentials(first)
        if parse_request(await _plain(peer)) is Request.COMMAND:
            raise AttachRefusedError("it asked to send control commands, which no container may")
    return True


async def read_greeting(connect: Connect) -> bytes:
    """The daemon's greeting, from a connection that says nothing. OSError, ProtocolError, TimeoutError."""
    async with asyncio.timeout(DAEMON_SECONDS):
        with await connect() as daemon:
            greeting = await _plain(daemon)
    if not greeting:
        raise ProtocolError("the MPS daemon hung up without a greeting")
    return greeting


async def attach(peer: socket.socket, greeting: bytes, connect: Connect) -> None:
    """Asks the daemon in the peer's place and passes on what both say until one hangs up. OSError, ProtocolError.

    Takes as long as the daemon does: a client waits while its MPS server starts, or until a faulted one has recovered.
    """
    with await connect() as daemon:
        if await _plain(daemon) != greeting:
            raise ProtocolError("the MPS daemon greets in another way than before")
        await send(daemon, CREDENTIALS)
        await send(daemon, int(Request.ATTACH).to_bytes(4, "little"))
        directions = [
            asyncio.create_task(_pass_on(daemon, peer, descriptors=True)),
            asyncio.create_task(_pass_on(peer, daemon, descriptors=False)),
        ]
        try:
            done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)


async def _pass_on(source: socket.socket, target: socket.socket, *, descriptors: bool) -> None:
    """Until `source` hangs up."""
    while True:
        packet = await receive(source)
        try:
            if packet == Packet(b""):
                return
            if packet.descriptors and not descriptors:
                raise ProtocolError("a client passes no descriptors to the MPS daemon")
            await send(target, packet.data, packet.descriptors)
        finally:
            packet.close()


async def _plain(sock: socket.socket) -> bytes:
    """A packet's data; empty when the other side hung up. ProtocolError where descriptors came with it."""
    packet = await receive(sock)
    packet.close()
    if packet.descriptors:
        raise ProtocolError("descriptors came with a message that has none")
    return packet.data
