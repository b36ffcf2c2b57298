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
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from gpushare.http.bodies import Bodies
from gpushare.http.connection import HttpConnection, ServerLimits
from gpushare.http.peers import Peers, peer_name
from gpushare.process.event_loop import within

LOG = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""
AT_ONCE = 32
"""Connections that are accepted before others have their turn."""
LINE, HEADERS = 4096, 32
"""Bytes of a line of a head, and how many: what a connection may hold before its request is one."""
ENDING = 64
"""Connections that may be ending above the limit; the next one waits for them, so that descriptors are never short."""
READ_BYTES = 16 * 1024
"""What aiohttp keeps of a body before its handler reads it, in place of 64 KiB."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHUTDOWN_SECONDS = 0.5
BEGINNING = 4096
"""Bytes of a body that is too large which its reader is given."""


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
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS, **_handler_options(limits))

    def new_handler() -> web.RequestHandler:
        assert runner.server is not None  # noqa: S101 - narrows for the type checker
        return runner.server()

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await server.answer(request, handler)

    server = _HttpServer(new_handler, limits, tls, client_names)
    app.middlewares.insert(0, counted)
    app[_SERVER] = server
    await runner.setup()
    try:
        async with server.open(port):
            yield
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


async def _without_server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)


class _HttpServer:
    """The connections and the requests under way."""

    def __init__(
        self,
        handlers: Callable[[], web.RequestHandler],
        limits: ServerLimits,
        tls: ssl.SSLContext | None = None,
        client_names: Collection[str] = (),
    ) -> None:
        """`handlers`: aiohttp's side of a new connection. Each of its requests has to come to `answer`."""
        self._handlers = handlers
        self._limits = limits
        self._tls = tls
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

    @asynccontextmanager
    async def open(self, port: int) -> AsyncIterator[None]:
        """Accepts connections while the context is open. OSError where the port is taken."""
        listening = _listening(port)
        accepting = asyncio.create_task(self._accept(listening))
        try:
            yield
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listening.close()
            await self._drained()

    async def _accept(self, listening: socket.socket) -> None:
        """Accepts connections until it is cancelled."""
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

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
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

    async def read(self, request: web.BaseRequest) -> bytes:
        connection = self._by_handler.get(request.protocol)
        if connection is None:
            raise ConnectionAbortedError
        body = bytearray()
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                given_up = self._bodies.grow(connection, connection.peer, len(body))
                for gone in given_up:
                    self._remove(gone)
                if connection in given_up:  # all of it may have come
                    raise ConnectionAbortedError
            self._bodies.complete(connection)
            self._peers.work(connection)
            return bytes(body)
        finally:
            body.clear()  # an error's traceback may hold it for long

    async def _drained(self) -> None:
        """Waits until no request is under way, `drain_seconds` at most. Answers from now on close their connection."""
        self._ending = True
        with suppress(TimeoutError):
            await within(self._limits.drain_seconds, self._no_request.wait())

    def abort(self) -> None:
        """What is left at the end: handshakes, and whoever does not take part in one."""
        for connection in self._peers:
            connection.abort()

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        accepted.setblocking(False)
        connection = HttpConnection(
            accepted,
            peer,
            self._handlers(),
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
        """The connection makes room at once, though its end takes the event loop's next turn."""
        self._forget(connection)
        connection.abort()

    def _ended(self, connection: HttpConnection) -> None:
        self._forget(connection)
        self._open -= 1

    def _forget(self, connection: HttpConnection) -> None:
        self._peers.remove(connection)
        self._bodies.remove(connection)
        self._by_handler.pop(connection.handler, None)


_SERVER = web.AppKey("_SERVER", _HttpServer)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """False for what clients send wrongly: they could fill the log, with text of their own."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG_OF_FAULTS = logging.getLogger(f"{__name__}.faults")
_LOG_OF_FAULTS.addFilter(_is_own_fault)


def _handler_options(limits: ServerLimits) -> dict[str, Any]:
    """The options of aiohttp's side of each connection."""
    return {
        "access_log": None,
        "logger": _LOG_OF_FAULTS,
        "auto_decompress": False,  # a body is limited as it was sent
        "keepalive_timeout": limits.keepalive_seconds,
        "lingering_time": 1.0,
        "read_bufsize": READ_BYTES,
        "max_line_size": LINE,
        "max_field_size": LINE,
        "max_headers": HEADERS,
    }


def _listening(port: int) -> socket.socket:
    """A socket for IPv6 and IPv4, or for IPv4 alone where the machine has no IPv6."""
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    else:
        server = socket.create_server(("", port), backlog=BACKLOG)
    server.setblocking(False)
    return server
