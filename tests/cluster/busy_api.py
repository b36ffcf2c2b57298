"""A proxy between our parts and the API server that refuses every tenth request, as a busy or failing server does.

It has a certificate of the cluster's authority, so our parts take it for the API server where their environment says.
"""

import asyncio
import hashlib
import itertools
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from localcluster.cluster.layout import Layout
from localcluster.cluster.pki import serving_certificate

EVERY = 10
RETRY_AFTER = 2
"""Seconds, whole ones, as an API server says them."""
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length"})
_Answer = tuple[int, dict[str, str], str]
_BUSY: _Answer = (429, {"Retry-After": str(RETRY_AFTER)}, "Too many requests, please try again later.\n")
_FAILING: _Answer = (
    500,
    {},
    '{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}',
)
_MAX_BODY = 64 * 1024 * 1024


@dataclass
class Seen:
    """Requests by the name that a part gives itself. `hasty`: what was asked again before the time that the 429
    told."""

    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    hasty: list[str] = field(default_factory=list)


class BusyApi:
    def __init__(self, layout: Layout) -> None:
        self.seen = Seen()
        self._layout = layout
        self._number = itertools.count(1)
        self._answers = itertools.cycle((_BUSY, _FAILING))
        self._not_before: dict[str, float] = {}

    async def serve(self, listening: "asyncio.Future[int]", ended: asyncio.Event) -> None:
        pki = self._layout.pki
        certificate = serving_certificate(pki, "busy-api", self._layout.network.host_ip)
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(*certificate)
        upstream = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        application = web.Application(client_max_size=_MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._answer)
        connector = aiohttp.TCPConnector(ssl=upstream, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, self._layout.network.host_ip, 0, ssl_context=served, shutdown_timeout=1).start()
            listening.set_result(runner.addresses[0][1])
            await ended.wait()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body, part = await request.read(), _part(request.headers.get("User-Agent", ""))
        self.seen.requests[part] += 1
        self._judge(part, request, body)
        if next(self._number) % EVERY == 0:
            return self._refuse(part, request, body)
        url = URL(f"{self._layout.network.server}{request.raw_path}", encoded=True)
        async with self._session.request(
            request.method, url, headers=_passed_on(request.headers), data=body or None
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    def _refuse(self, part: str, request: web.Request, body: bytes) -> web.Response:
        status, headers, text = next(self._answers)
        self.seen.refused[part, status] += 1
        if status == _BUSY[0]:
            self._not_before[_same(part, request, body)] = time.monotonic() + RETRY_AFTER
        return web.Response(status=status, headers=headers, text=text)

    def _judge(self, part: str, request: web.Request, body: bytes) -> None:
        early = self._not_before.pop(_same(part, request, body), 0.0) - time.monotonic()
        if early > 0:
            self.seen.hasty.append(f"{part}: {request.method} {request.path}: {early:.1f} s too early")


def _part(user_agent: str) -> str:
    return user_agent.partition("/")[0].partition(" ")[0]


def _same(part: str, request: web.Request, body: bytes) -> str:
    """Text that is the same for a request that is sent again."""
    return f"{part} {request.method} {request.path_qs} {hashlib.sha256(body).hexdigest()}"


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


@contextmanager
def busy_api(layout: Layout) -> Iterator[tuple[BusyApi, int]]:
    """The proxy and its port at the machine's address in the cluster's network."""
    proxy, ready = BusyApi(layout), threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()
    listening: asyncio.Future[int] = loop.create_future()
    listening.add_done_callback(lambda _: ready.set())
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy.serve(listening, ended),))
    thread.start()
    try:
        assert ready.wait(30), "the proxy does not listen"
        yield proxy, listening.result()
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()
