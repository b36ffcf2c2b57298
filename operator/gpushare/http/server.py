"""Serves an aiohttp application on a port of its own, over plain HTTP or TLS.

Guarantees: the TLS handshake, the headers of the first request, the time between requests and the number of
connections are limited. When the context ends, the port is closed at once, and requests under way are answered within
`drain_seconds`. Not limited here: the time for a request's body, which is the handler's part.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may take of a server."""

    handshake_seconds: float = 10.0
    """For TLS."""
    head_seconds: float = 10.0
    """From the connection, the TLS handshake included, to the end of the first request's headers."""
    keepalive_seconds: float = 75.0
    """Between two requests, the headers of the second one included."""
    drain_seconds: float = 1.0
    """For requests under way when the server ends."""
    connections: int = 512
    """A connection above this number is closed at once."""


@asynccontextmanager
async def serve(
    app: web.Application, port: int, *, tls: ssl.SSLContext | None = None, limits: ServerLimits | None = None
) -> AsyncIterator[None]:
    """Serves on all addresses while the context is open.

    `app` gets a middleware, so it is served once. `tls` is read at each handshake: a certificate that is loaded into it
    later is used from then on. Raises OSError where the port is taken.
    """
    limits = limits or ServerLimits()
    requests = _Requests()
    app.middlewares.insert(0, requests.middleware)
    app.on_response_prepare.append(_without_server_header)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        auto_decompress=False,  # a body is limited as it was sent
        keepalive_timeout=limits.keepalive_seconds,
        lingering_time=1.0,
        shutdown_timeout=0.5,
    )
    await runner.setup()
    loop = asyncio.get_running_loop()

    def connection() -> asyncio.BaseProtocol:
        assert runner.server is not None  # noqa: S101 - narrows for the type checker
        if len(runner.server.connections) >= limits.connections:
            return _Refused()
        handler = runner.server()
        requests.silent[handler] = loop.call_later(limits.head_seconds, requests.close_silent, handler)
        return handler

    try:
        listening = await loop.create_server(
            connection, None, port, ssl=tls, ssl_handshake_timeout=limits.handshake_seconds if tls else None
        )
        try:
            yield
        finally:
            listening.close()
            await requests.drained(limits.drain_seconds)
    finally:
        await runner.cleanup()


class _Requests:
    """The requests under way, and the connections that have sent none yet."""

    def __init__(self) -> None:
        self.silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        """By connection: the timer that closes it."""
        self._count = 0
        self._ending = False
        self._none = asyncio.Event()
        self._none.set()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if timer := self.silent.pop(request.protocol, None):
            timer.cancel()
        self._count += 1
        self._none.clear()
        try:
            response = await handler(request)
            if self._ending:
                response.force_close()
            return response
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    def close_silent(self, connection: web.RequestHandler) -> None:
        del self.silent[connection]
        connection.force_close()

    async def drained(self, seconds: float) -> None:
        """Waits until no request is under way, `seconds` at most. Answers from now on close their connection."""
        self._ending = True
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            return


class _Refused(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _without_server_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Server", None)
