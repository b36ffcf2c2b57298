"""GET /metrics on a port of its own, over plain HTTP.

Guarantees: the event loop only takes a snapshot, which copies references; the text is rendered in a thread, one scrape
at a time, so that neither a slow client nor many of them delay the work. No scrape asks the driver or the API server.
Scrapes are not authenticated: the figures name namespaces, pods and containers, so a NetworkPolicy limits who reaches
the port (chart: networkPolicy, metrics.from).
"""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client.exposition import choose_encoder

from gpushare.http.connection import ServerLimits
from gpushare.http.server import serve
from gpushare.metrics.exported import Exported

LIMITS = ServerLimits(keepalive_seconds=75.0)
"""Longer than the usual interval between scrapes, so that Prometheus keeps its connection."""


@asynccontextmanager
async def exposed(port: int, exported: Exported) -> AsyncIterator[None]:
    """Serves on all addresses while the context is open; port 0: not at all. OSError when the port is taken."""
    if port == 0:
        yield
        return
    app = web.Application()
    app.router.add_get("/metrics", _rendered(exported))
    async with serve(app, port, limits=LIMITS):
        yield


def _rendered(exported: Exported) -> Handler:
    one_at_a_time = asyncio.Lock()

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        zipped = "gzip" in request.headers.get("Accept-Encoding", "")

        def render() -> bytes:
            text: bytes = encode(exported.registry)
            return gzip.compress(text, compresslevel=1) if zipped else text

        async with one_at_a_time:
            exported.refresh()
            body = await asyncio.to_thread(render)
        headers = {"Content-Type": content_type} | ({"Content-Encoding": "gzip"} if zipped else {})
        return web.Response(body=body, headers=headers)

    return metrics
