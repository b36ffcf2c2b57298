"""Serves the page in the cluster, behind an ingress and a proxy that authenticates: who comes through is trusted.

The limits on connections are those of every server of ours (`gpushare.http.server`).
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from aiohttp import web

from gpushare.http.connection import ServerLimits
from gpushare.http.server import serve
from gpushare.kubectl.page.cluster.follow import LOOKUPS
from gpushare.kubectl.page.serving.pages import Pages

LIMITS = ServerLimits(connections=256)
SMALL = 4096
"""Bytes that are sent as they are."""
WORKERS = 2 * LOOKUPS
"""So that some are left while others wait for the API server."""


@asynccontextmanager
async def serving_in_cluster(pages: Pages, port: int) -> AsyncIterator[None]:
    """Serves while the context is open. Raises OSError where the port is taken."""
    pool = ThreadPoolExecutor(WORKERS)

    async def answer(request: web.Request) -> web.Response:
        host = request.headers.get("Host", "")
        page_answer = await asyncio.get_running_loop().run_in_executor(
            pool, pages.answer, request.method, request.raw_path, host
        )
        headers = {**page_answer.headers, "Content-Type": page_answer.kind}
        response = web.Response(
            status=page_answer.status, body=page_answer.body, headers=headers, zlib_executor_size=SMALL
        )
        if len(page_answer.body) > SMALL:
            response.enable_compression()  # where the browser takes it: a large fleet is some MB, of a tenth of that
        return response

    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    try:
        async with serve(app, port, limits=LIMITS):
            yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
