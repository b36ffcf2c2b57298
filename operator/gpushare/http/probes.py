"""The probes of a part: /healthz and /readyz over plain HTTP, for the kubelet.

Guarantees: an answer costs nothing but its check, which reads what the part knows already.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from gpushare.http import server
from gpushare.http.connection import ServerLimits

Check = Callable[[], str | None]
"""None when all is well, otherwise the problem, as a sentence."""

LIMITS = ServerLimits(head_seconds=5.0, keepalive_seconds=5.0, connections=64)
"""The kubelet opens a connection for each probe."""


def well() -> None:
    """The check of a part that answers: nothing else is asked."""


@asynccontextmanager
async def serve(port: int, checks: Mapping[str, Check]) -> AsyncIterator[None]:
    """Serves `checks`, by path, while the context is open.

    200, or 503 with the problem; 404 for other paths. Raises OSError where the port is taken.
    """
    app = web.Application()
    for path, check in checks.items():
        app.router.add_get(path, _handler(check))
    async with server.serve(app, port, limits=LIMITS):
        yield


def _handler(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_: web.Request) -> web.Response:
        problem = check()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    return handler
