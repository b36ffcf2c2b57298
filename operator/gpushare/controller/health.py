"""/healthz and /readyz over HTTP. A replica that waits for the Lease is healthy and ready: it lacks nothing."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

STUCK_SECONDS = 300.0
"""A round of writes that takes longer hangs: each request in it has a limit of its own of 15 s."""


@asynccontextmanager
async def probes(port: int, stuck_seconds: Callable[[], float]) -> AsyncIterator[None]:
    """Serves on all addresses while the context is open. OSError when the port is taken."""

    async def healthz(_: web.Request) -> web.Response:
        stuck = stuck_seconds()
        if stuck > STUCK_SECONDS:
            return web.Response(status=503, text=f"the present round has taken {stuck:.0f} s\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
        yield
    finally:
        await runner.cleanup()
