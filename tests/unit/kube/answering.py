"""An HTTP server on loopback that answers as a test says."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler


@asynccontextmanager
async def answering(
    answer: Handler, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """The port of the server, which asks `answer` of each path. Its end waits for no answer."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
