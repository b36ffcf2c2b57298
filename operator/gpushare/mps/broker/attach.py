"""One attach, as the peer sees it: its request, its socket to the MPS server, and whether the server has heard it.

Guarantees: nothing of a peer reaches the MPS daemon, and no command of a peer ever does. Neither daemon nor server
waits for a peer longer than ATTACH_SECONDS; without a broker they wait for ever for one that stops, dies or is silent
in the midst of its attach (measured). The broker answers the daemon in the peer's place and keeps a copy of the socket
that it passes on, so that it can end the peer's part.

What remains: a peer that shuts the passed socket down, and has said nothing on it before, hangs the server. Running
clients go on; the broker tells who it was.
"""

import asyncio
import errno
import socket
from contextlib import suppress

from msgspec.structs import replace

from gpushare.mps.attach_protocol import (
    CLIENT_SOCKET,
    CREDENTIALS,
    ProtocolError,
    Request,
    check_credentials,
    parse_request,
    request_message,
)
from gpushare.mps.broker.daemon import BrokeredDaemon, ServerSocket
from gpushare.mps.broker.kept_sockets import UnderWay
from gpushare.mps.broker.turns import NoTurnError
from gpushare.mps.packets import plain, send
from gpushare.mps.wire import QueuedSocket, TurnAnswer

GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
"""What the kernel says of a socket whose other side hung up; all else is our own trouble."""
REQUEST_SECONDS = 5.0
"""A CUDA process asks within milliseconds of its connection."""
ATTACH_SECONDS = 2.0
"""The time from the moment that a peer has its socket until it has said who it is. CUDA takes less than a
millisecond."""
RECOVERY_SECONDS = 1.0
FAREWELL_SECONDS = 1.0


class CommandRefusedError(Exception):
    """The peer asked to send control commands."""


class StalledError(Exception):
    """The peer got its socket to the server and did not say who it is. The server goes on."""


class ServerHungError(Exception):
    """The server answers no more since the peer got its socket."""


class NotPassedError(NoTurnError):
    """The kernel does not pass the peer its socket now, by no fault of the peer's: there are no descriptors, say."""


async def read_request(peer: socket.socket, seconds: float = REQUEST_SECONDS, *, again: bool = False) -> Request | None:
    """What a peer that was greeted asks for; None when it only looked. The request itself stays unread, so that also
    the broker after this one finds it. `again`: an earlier one may have read what comes before it.

    Raises CommandRefusedError for commands, ProtocolError for anything else and after `seconds`, OSError where
    the peer hung up in between.
    """
    try:
        async with asyncio.timeout(seconds):
            first = await _first(peer, peek=again)
            if not first:
                return None
            if not again:
                check_credentials(first)
            elif first == CREDENTIALS:
                await plain(peer)
            second = await plain(peer, peek=True)
    except TimeoutError as error:
        raise ProtocolError(f"it did not say within {seconds:g} s what it wants") from error
    if not second:
        raise OSError(errno.ECONNRESET, "it hung up before its request")
    request = parse_request(second)
    if request is Request.COMMAND:
        raise CommandRefusedError("it asked to send control commands, which no container may")
    return request


async def _first(peer: socket.socket, *, peek: bool) -> bytes:
    """Its first message; empty where it hung up, whether it had read the greeting or not. `peek`: as of `plain`."""
    try:
        return await plain(peer, peek=peek)
    except OSError as error:
        if error.errno in GONE:
            return b""
        raise


async def attach(
    peer: socket.socket, turn: TurnAnswer, daemon: BrokeredDaemon, wanted: QueuedSocket, under_way: UnderWay
) -> int:
    """Passes the peer its socket, and waits until the server has heard the peer. Under protocol v3 it does not wait:
    nothing is documented by which to ask an unprivileged daemon for that. Returns the inode of the socket.

    `wanted`: the peer, as the queue `under_way` shows it to a broker that comes after this one.

    Raises StalledError or ServerHungError; NoTurnError where the daemon gives no socket, and NotPassedError where the
    kernel passes it to nobody, which is no fault of the peer's; OSError where the peer has gone.
    """
    wanted = replace(wanted, server_pid=turn.server_pid, namespace=turn.namespace)
    try:
        given = await daemon.client_socket(wanted, under_way)
    except (OSError, ProtocolError) as error:
        why = str(error) or type(error).__name__
        raise NoTurnError(f"the MPS daemon gives no client a socket: {why}") from error
    with given as passed:
        inode = passed.inode
        try:
            await send(peer, CLIENT_SOCKET, [passed.fileno()])
        except BaseException as error:
            passed.speak_for_client()
            if isinstance(error, OSError) and error.errno not in GONE:
                raise NotPassedError(f"no socket can be passed to a client: {error.strerror or error}") from error
            raise
        if not turn.namespace:
            await _until_heard(passed, turn.server_pid, daemon)
        return inode


async def end_passed(sock: socket.socket, queued: QueuedSocket, daemon: BrokeredDaemon) -> bool:
    """Waits until the server has heard the client to whom an earlier broker passed this socket, or was about to. False:
    it has not, and its part is ended. Raises ServerHungError; under protocol v3 nothing is known, as in `attach`.
    """
    with ServerSocket(sock, UnderWay(), 0) as passed:
        if queued.namespace:
            return False
        try:
            await _until_heard(passed, queued.server_pid, daemon)
        except StalledError:
            return False
        return True


async def _until_heard(passed: ServerSocket, server: int, daemon: BrokeredDaemon) -> None:
    """StalledError: the server had not heard the client in time, and its part is ended. ServerHungError."""
    heard = asyncio.create_task(daemon.until_free(server))
    try:
        # Not less for a process that has ended: the server may have heard it, and be busy with its end.
        await asyncio.wait({heard}, timeout=ATTACH_SECONDS)
        if heard.done():
            return
        passed.speak_for_client()
        await asyncio.wait({heard}, timeout=RECOVERY_SECONDS)
        if not heard.done():
            raise ServerHungError("the MPS server answers no more since this process attached")
        raise StalledError(f"it did not say who it is within {ATTACH_SECONDS:g} s, while all others waited")
    finally:
        heard.cancel()
        await asyncio.gather(heard, return_exceptions=True)


async def farewell(peer: socket.socket) -> None:
    """The peer's last message, after its request; CUDA would take an early end of the connection for an error."""
    with suppress(OSError, TimeoutError, ProtocolError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            if await plain(peer) == request_message(Request.ATTACH):
                await plain(peer)
