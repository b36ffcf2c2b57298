"""Serves an aiohttp application on a port of its own, over plain HTTP or TLS.

Guarantees: the TLS handshake, the headers of the first request, the time between requests, the time to take an answer,
the number of connections and the memory of large bodies are limited. A server that is full goes on serving: the peer
that takes most of it gives way (`peers`, `bodies`). When the context ends, the port is closed at once, and requests
under way are answered within `drain_seconds`. Not limited here: the time for a request's body, which is the handler's
part.
"""

import asyncio
import errno
import logging
import socket
import ssl
import traceback
from asyncio import sslproto
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from gpushare.http.bodies import Bodies
from gpushare.http.connection import HttpConnection
from gpushare.http.limits import ServerLimits
from gpushare.http.peers import Peers, peer_name

LOG = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""
BEGINNING = 4096
"""Bytes of a body that is too large which its reader is given."""
AT_ONCE = 32
"""Connections that are accepted before others have their turn."""
LINE, HEADERS = 4096, 32
"""Bytes of a line of a head, and how many: what a connection may hold before its request is one."""
ENDING = 64
"""Connections that may be ending above the limit; the next one waits for them, so that descriptors are never short."""
TLS_RECORD = 16 * 1024
"""Bytes; what asyncio and aiohttp keep ready for each connection, in place of 256 and 64 KiB."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class BodyTooLargeError(Exception):
    """A body of more bytes than its reader takes. `beginning`: what there is of it."""

    def __init__(self, size: int, beginning: bytes) -> None:
        super().__init__(f"a body of {size} bytes")
        self.size = size
        self.beginning = beginning


@asynccontextmanager
async def serve(
    app: web.Application,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    limits: ServerLimits | None = None,
    client_names: Collection[str] = (),
) -> AsyncIterator[None]:
    """Serves on all addresses while the context is open.

    `app` gets a middleware, so it is served once. `tls` is read at each handshake: a certificate that is loaded into it
    later is used from then on. `client_names`: common names that a client's certificate may have, where `tls` asks for
    one; empty: any. Raises OSError where the port is taken.
    """
    limits = limits or ServerLimits()
    app.on_response_prepare.append(_without_server_header)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        logger=_LOG_OF_FAULTS,
        auto_decompress=False,  # a body is limited as it was sent
        keepalive_timeout=limits.keepalive_seconds,
        lingering_time=1.0,
        read_bufsize=TLS_RECORD,
        max_line_size=LINE,
        max_field_size=LINE,
        max_headers=HEADERS,
        shutdown_timeout=0.5,
    )
    server = _Server(runner, limits, tls, client_names)
    app.middlewares.insert(0, server.middleware)
    app[_SERVER] = server
    await runner.setup()
    try:
        listening = _listening(port)
        accepting = asyncio.create_task(server.accept(listening))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listening.close()
            await server.drained()
    finally:
        await runner.cleanup()
        server.abort()


async def read_body(request: web.Request, most: int) -> bytes:
    """The request's body, which must say its length.

    Raises BodyTooLargeError as soon as that is known, HTTPLengthRequired, and OSError where the client is gone.
    """
    size = request.content_length
    if size is None:
        raise web.HTTPLengthRequired
    if size > most:
        raise BodyTooLargeError(size, await request.content.readexactly(min(size, BEGINNING)))
    return await request.config_dict[_SERVER].read(request)


class _Server:
    """The connections and the requests under way."""

    def __init__(
        self, runner: web.AppRunner, limits: ServerLimits, tls: ssl.SSLContext | None, client_names: Collection[str]
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._tls = tls
        if tls is not None:
            sslproto.SSLProtocol.max_size = TLS_RECORD
        self._client_names = client_names
        self._peers = Peers[HttpConnection](limits.connections)
        self._bodies = Bodies[HttpConnection](limits.body_bytes)
        self._by_handler: dict[asyncio.BaseProtocol, HttpConnection] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._open = 0
        self._requests = 0
        self._ending = False
        self._no_request = asyncio.Event()
        self._no_request.set()

    async def accept(self, listening: socket.socket) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        taken = 0
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    LOG.warning("no connection can be accepted: %s", error)
                    await asyncio.sleep(1.0)
                continue
            try:
                self._admit(accepted, peer_name(address[0]))
            except Exception:  # whatever it is: others must be able to connect
                LOG.exception("a connection was not taken")
                accepted.close()
            taken += 1
            if taken % AT_ONCE == 0:
                await asyncio.sleep(0)
            for _ in range(ENDING):
                if self._open <= self._limits.connections + ENDING:
                    break
                await asyncio.sleep(0)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self._by_handler.get(request.protocol)
        if connection is None:
            raise web.HTTPServiceUnavailable  # it went a moment ago
        connection.heard()
        if not request.can_read_body:
            self._peers.work(connection)
        self._requests += 1
        self._no_request.clear()
        try:
            response = await handler(request)
            if self._ending:
                response.force_close()
            return response
        finally:
            self._requests -= 1
            if self._requests == 0:
                self._no_request.set()
            self._bodies.remove(connection)
            self._peers.rest(connection)

    async def read(self, request: web.Request) -> bytes:
        connection = self._by_handler.get(request.protocol)
        if connection is None:
            raise ConnectionAbortedError
        body = bytearray()
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                if gone := self._bodies.grow(connection, connection.peer, len(body)):
                    self._remove(gone)
            self._bodies.complete(connection)
            self._peers.work(connection)
            return bytes(body)
        finally:
            body.clear()  # an error's traceback may hold it for long

    async def drained(self) -> None:
        """Waits until no request is under way, `drain_seconds` at most. Answers from now on close their connection."""
        self._ending = True
        try:
            async with asyncio.timeout(self._limits.drain_seconds):
                await self._no_request.wait()
        except TimeoutError:
            return

    def abort(self) -> None:
        """What is left at the end: handshakes, and whoever does not take part in one."""
        for connection in self._peers:
            connection.abort()

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        assert self._runner.server is not None  # noqa: S101 - narrows for the type checker
        accepted.setblocking(False)
        connection = HttpConnection(
            accepted,
            peer,
            self._runner.server(),
            self._ended,
            client_names=self._client_names,
            limits=self._limits,
        )
        self._open += 1
        self._by_handler[connection.handler] = connection
        if gone := self._peers.add(connection, peer):
            self._remove(gone)
            if gone is connection:
                connection.ended()
                accepted.close()
                return
        task = asyncio.create_task(self._connect(accepted, connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _connect(self, accepted: socket.socket, connection: HttpConnection) -> None:
        seconds = {"ssl_handshake_timeout": self._limits.handshake_seconds, "ssl_shutdown_timeout": 1.0}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, **(seconds if self._tls else {})
            )
        except OSError as error:  # a failed handshake too, and one that takes too long
            connection.ended()
            accepted.close()
            traceback.clear_frames(error.__traceback__)  # asyncio's hold each other, and much memory

    def _remove(self, connection: HttpConnection) -> None:
        """It makes room at once, though its end takes the event loop's next turn."""
        self._forget(connection)
        connection.abort()

    def _ended(self, connection: HttpConnection) -> None:
        self._forget(connection)
        self._open -= 1

    def _forget(self, connection: HttpConnection) -> None:
        self._peers.remove(connection)
        self._bodies.remove(connection)
        self._by_handler.pop(connection.handler, None)


class _OwnFaults(logging.Filter):
    """Keeps what clients send wrongly out of the log: they could fill it, with text of their own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG_OF_FAULTS = logging.getLogger(f"{__name__}.faults")
_LOG_OF_FAULTS.addFilter(_OwnFaults())
_SERVER = web.AppKey("_SERVER", _Server)


def _listening(port: int) -> socket.socket:
    """For IPv6 and IPv4, or for IPv4 alone where the machine has no IPv6."""
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        server = socket.create_server(("", port), backlog=BACKLOG)
    server.setblocking(False)
    return server


async def _without_server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)
