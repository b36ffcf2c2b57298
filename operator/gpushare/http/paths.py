"""Serves a few paths without aiohttp's applications, which take a megabyte of each process: for probes and metrics."""

from asyncio import Task, get_running_loop, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_exceptions import HTTPMethodNotAllowed, HTTPNotFound
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from gpushare.http.core import SHUTDOWN_SECONDS, HttpServer, handler_options, without_server_header
from gpushare.http.limits import ServerLimits

Answer = Callable[[BaseRequest], Awaitable[StreamResponse]]
METHODS = ("GET", "HEAD")


@asynccontextmanager
async def serve_paths(port: int, paths: Mapping[str, Answer], limits: ServerLimits) -> AsyncIterator[None]:
    """GET and HEAD on all addresses while the context is open; 404 for other paths. OSError where the port is taken."""

    async def routed(request: BaseRequest) -> StreamResponse:
        answer = paths.get(request.path)
        if answer is None:
            raise HTTPNotFound
        if request.method not in METHODS:
            raise HTTPMethodNotAllowed(request.method, METHODS)
        return await answer(request)

    async def counted(request: BaseRequest) -> StreamResponse:
        return await server.answer(request, routed)

    handlers = Server(counted, request_factory=_request, **handler_options(limits))
    server = HttpServer(handlers, limits)
    try:
        async with server.open(port):
            yield
    finally:
        await sleep(0)  # requests that have come are counted
        handlers.pre_shutdown()
        await handlers.shutdown(SHUTDOWN_SECONDS)
        server.abort()


class _Request(BaseRequest):
    async def _prepare_hook(self, response: StreamResponse) -> None:
        without_server_header(response)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "Task[None]",
) -> BaseRequest:
    return _Request(message, payload, protocol, writer, task, get_running_loop())
