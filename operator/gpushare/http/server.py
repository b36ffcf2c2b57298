"""Serves an aiohttp application on a port of its own, over plain HTTP or TLS.

Guarantees: the TLS handshake, the headers of the first request, the time between requests, the time to take an answer,
the number of connections and the memory of large bodies are limited. A server that is full goes on serving: the peer
that takes most of it gives way (`peers`, `bodies`). When the context ends, the port is closed at once, and requests
under way are answered within `drain_seconds`. Not limited here: the time for a request's body, which is the handler's
part.
"""

import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from gpushare.http.core import SHUTDOWN_SECONDS, HttpServer, handler_options, without_server_header
from gpushare.http.limits import ServerLimits

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
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS, **handler_options(limits))

    def new_handler() -> web.RequestHandler:
        assert runner.server is not None  # noqa: S101 - narrows for the type checker
        return runner.server()

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await server.answer(request, handler)

    server = HttpServer(new_handler, limits, tls, client_names)
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


_SERVER = web.AppKey("_SERVER", HttpServer)


async def _without_server_header(_: web.Request, response: web.StreamResponse) -> None:
    without_server_header(response)
