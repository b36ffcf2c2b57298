"""Requests against an HTTP server on loopback: lists in pages, watch events of any length, many watches at a time."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpushare.kube import client
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import API_ERRORS, NODES, PODS, SILENT_SECONDS, Kube, KubeError, TooLargeError
from gpushare.kube.session import ApiSession


def pod(number: int, size: int = 0) -> Any:
    return {"metadata": {"name": f"pod-{number}", "resourceVersion": "7"}, "spec": {"x": "x" * size}}


class Server:
    """Lists `pods` in pages as asked for; a watch sends `lines` and stays open. `limits`: what each list asked for."""

    def __init__(self, pods: list[Any], lines: list[bytes]) -> None:
        self.pods, self.lines = pods, lines
        self.limits: list[int] = []
        self.lie: bytes | None = None
        """What every request but a watch is answered with, as a success."""
        self.refusals: list[tuple[int, str]] = []
        """The next answers, each (status, Retry-After)."""
        self.asked_at: list[float] = []
        self.watches, self.client_port = 0, 0
        self.closing = asyncio.Event()
        self.asking, self.hundred, self.more = 0, asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.refusals:
            status, after = self.refusals.pop(0)
            return web.json_response({"message": "busy"}, status=status, headers={"Retry-After": after})
        if request.query.get("watch"):
            return await self._watch(request)
        if self.lie is None and request.path.endswith("/nodes/n"):
            return web.json_response({"metadata": {"name": "n"}})
        if self.lie is not None:
            return web.Response(body=self.lie)
        if request.path.endswith("/nodes/slow"):
            return await self._slow()
        limit, first = int(request.query.get("limit") or 0), int(request.query.get("continue") or 0)
        self.limits.append(limit)
        limit = limit or len(self.pods)
        more = {"continue": str(first + limit)} if first + limit < len(self.pods) else {}
        items = self.pods[first : first + limit]
        return web.json_response({"metadata": {"resourceVersion": "9", **more}, "items": items})

    async def _slow(self) -> web.StreamResponse:
        self.asking += 1
        for many, event in ((100, self.hundred), (101, self.more)):
            if self.asking == many:
                event.set()
        await self.closing.wait()
        return web.json_response({})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches += 1
        assert request.transport is not None
        self.client_port = request.transport.get_extra_info("peername")[1]
        for line in self.lines:
            await response.write(line)
        await self.closing.wait()
        return response


@asynccontextmanager
async def serving(
    pods: list[Any] | None = None, lines: list[bytes] | None = None, silent: float = SILENT_SECONDS
) -> AsyncIterator[tuple[Server, Kube]]:
    server = Server(pods or [], lines or [])
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    kube = Kube(ApiSession(Configuration(host=host), "test"), silent)
    try:
        yield server, kube
    finally:
        server.closing.set()
        await kube.close()
        await runner.cleanup()


async def listed(kube: Kube) -> tuple[list[str], set[str]]:
    pages = [page async for page in kube.pages(PODS, lambda pod: pod["metadata"]["name"], "team")]
    return [name for names, _ in pages for name in names], {version for _, version in pages}


async def test_a_small_list_is_asked_for_as_a_whole() -> None:
    async with serving([pod(number) for number in range(1000)]) as (server, kube):
        assert len((await listed(kube))[0]) == 1000
    assert server.limits == [0]


async def test_a_large_list_comes_in_pages_of_one_version() -> None:
    pods = [pod(number, client.PAGE_BYTES // client.PAGE_ITEMS // 2) for number in range(2 * client.PAGE_ITEMS + 1)]
    async with serving(pods) as (server, kube):
        assert await listed(kube) == ([pod["metadata"]["name"] for pod in pods], {"9"})
    assert server.limits == [0] + [client.PAGE_ITEMS] * 3


async def test_of_large_objects_fewer_are_asked_for_at_a_time() -> None:
    pods = [pod(number, client.PAGE_BYTES // 3) for number in range(6)]
    async with serving(pods) as (server, kube):
        assert (await listed(kube))[0] == [pod["metadata"]["name"] for pod in pods]
    assert 0 < min(server.limits[1:]) <= 3


async def test_a_page_is_as_large_as_the_objects_of_the_last_one_let_expect() -> None:
    """A page that is too large is read in vain, so each but the first few fits."""
    pods = [pod(number, client.PAGE_BYTES // 20) for number in range(200)]
    async with serving(pods) as (server, kube):
        assert len((await listed(kube))[0]) == 200
    assert server.limits[:3] == [0, client.PAGE_ITEMS, client.PAGE_ITEMS // 8]
    assert set(server.limits[4:]) == {14}


async def test_an_object_that_is_larger_than_a_page_is_read_alone() -> None:
    pods = [pod(0), pod(1, client.PAGE_BYTES + 1), pod(2)]
    async with serving(pods) as (_, kube):
        assert (await listed(kube))[0] == ["pod-0", "pod-1", "pod-2"]


async def test_an_object_that_no_api_server_can_have_is_refused() -> None:
    async with serving([pod(0, client.MAX_OBJECT_BYTES)]) as (_, kube):
        with pytest.raises(TooLargeError, match="an object of pods has more than"):
            await listed(kube)


def event(number: int, size: int = 0) -> bytes:
    return json.dumps({"type": "ADDED", "object": pod(number, size)}).encode() + b"\n"


async def test_a_watch_event_may_be_as_large_as_an_object() -> None:
    """A pod of 150,000 ports has 5.5 MB, in one line."""
    large, small = event(1, 8 * 1024 * 1024), event(2) + event(3)
    async with serving(lines=[large, small[:20], small[20:]]) as (_, kube):
        seen: list[str] = []
        async for change in kube.watch(PODS, None, "1", {}):
            seen.append(change["object"]["metadata"]["name"])
            if len(seen) == 3:
                break
    assert seen == ["pod-1", "pod-2", "pod-3"]


async def test_a_watch_event_without_an_end_is_refused() -> None:
    async with serving(lines=[b"x" * (client.MAX_OBJECT_BYTES + 1)]) as (_, kube):
        with pytest.raises(TooLargeError, match="a watch event has more than"):
            async with asyncio.timeout(20):
                await anext(aiter(kube.watch(PODS, None, "1", {})))


@pytest.mark.parametrize("lie", [b"<html>Sign in</html>", b"", b"null", b"[]", b"\xff\xfe", b'{"kind": '])
async def test_what_no_api_server_answers_is_an_error_like_a_gateways(lie: bytes) -> None:
    """Any other error would end the operator or the agent that asked."""
    async with serving(lines=[lie + b"\n"]) as (server, kube):
        server.lie = lie
        for question in (kube.get(NODES, "n"), listed(kube), anext(aiter(kube.watch(PODS, None, "1", {})))):
            with pytest.raises(KubeError, match="none of an API server") as raised:
                await question
            assert raised.value.status == 502


async def test_a_list_or_event_that_lacks_what_each_has_is_an_error_too() -> None:
    async with serving(lines=[b"{}\n"]) as (server, kube):
        server.lie = b"{}"
        for question in (listed(kube), anext(aiter(kube.watch(PODS, None, "1", {})))):
            with pytest.raises(KubeError, match="none of an API server"):
                await question


async def test_a_request_waits_for_no_watch_however_many_there_are() -> None:
    async with serving(lines=[event(1)]) as (server, kube):
        watches = [aiter(kube.watch(PODS, f"team-{number}", "1", {})) for number in range(150)]
        async with asyncio.timeout(20):
            await asyncio.gather(*(anext(watch) for watch in watches))
        assert server.watches == 150
        async with asyncio.timeout(5):
            assert (await kube.get(NODES, "n"))["metadata"]["name"] == "n"
        for watch in watches:
            await watch.aclose()  # type: ignore[attr-defined]


async def test_a_watch_that_falls_silent_breaks_though_its_connection_stands() -> None:
    async with serving(lines=[event(1)], silent=0.3) as (_, kube):
        watch = aiter(kube.watch(PODS, None, "1", {}))
        async with asyncio.timeout(10):
            await anext(watch)
            with pytest.raises(API_ERRORS):
                await anext(watch)


async def test_a_list_watch_goes_on_after_a_silence_and_finds_what_it_missed() -> None:
    """A deletion that is not seen ends a client in mid-kernel."""
    kept, gone = pod(1), pod(2)
    async with serving([kept, gone], silent=0.3) as (server, kube):
        changed = asyncio.Event()
        pods = Reflector(kube, PODS, changed.set)
        follows = asyncio.create_task(pods.run())
        await pods.synced.wait()
        assert len(pods.objects) == 2
        server.pods = [kept]
        async with asyncio.timeout(20):
            while len(pods.objects) == 2:
                changed.clear()
                await changed.wait()
        follows.cancel()


async def test_a_watch_that_ends_at_once_is_not_begun_again_and_again() -> None:
    """The client is as behind a proxy that lets no stream through."""
    async with serving() as (server, kube):
        server.closing.set()
        follows = asyncio.create_task(Reflector(kube, PODS, lambda: None).run())
        await asyncio.sleep(0.5)
        assert server.watches == 1
        follows.cancel()


async def test_the_kernel_probes_a_connection_that_is_idle_for_15_s() -> None:
    async with serving(lines=[event(1)]) as (server, kube):
        watch = aiter(kube.watch(PODS, None, "1", {}))
        await anext(watch)
        timer, _, due = _timer_of(server.client_port).partition(":")
        assert timer == "02", "not the timer of keepalive"
        assert int(due, 16) / os.sysconf("SC_CLK_TCK") <= 15
        await watch.aclose()  # type: ignore[attr-defined]


def _timer_of(port: int) -> str:
    """`which:when` of the connection from that port of ours, as the kernel's table has it."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (timer,) = [row[5] for row in rows if int(row[1].rpartition(":")[2], 16) == port]
    return timer


async def test_of_requests_a_hundred_are_under_way_at_most() -> None:
    """A pod may have thousands of claims, of each of which the webhook asks."""
    async with serving() as (server, kube), asyncio.timeout(20):
        asked = asyncio.gather(*(kube.get(NODES, "slow") for _ in range(150)))
        await server.hundred.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await server.more.wait()
        server.closing.set()
        await asked
    assert server.asking == 150


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_is_too_busy_is_asked_again_when_it_says(status: int) -> None:
    async with serving() as (server, kube):
        server.refusals = [(status, "1")]
        assert (await kube.get(NODES, "n"))["metadata"]["name"] == "n"
    first, second = server.asked_at
    assert second - first >= 0.99


async def test_a_write_is_sent_again_too_unless_writing_is_over_by_then() -> None:
    class NoLongerOursError(Exception):
        pass

    def check() -> None:
        if server.asked_at:
            raise NoLongerOursError

    async with serving() as (server, kube):
        server.refusals = [(429, "1")]
        await kube.patch(NODES, "n", {}, manager="m")
        assert len(server.asked_at) == 2
        server.asked_at.clear()
        server.refusals = [(429, "1")]
        kube.guard_writes(check)
        with pytest.raises(NoLongerOursError):
            await kube.patch(NODES, "n", {}, manager="m")
        assert len(server.asked_at) == 1


@pytest.mark.parametrize(
    ("status", "after", "told"),
    [
        (429, "3600", 3600.0),
        (429, "", 0.0),
        (503, "soon", 0.0),
        (429, "-1", 0.0),
        (429, "9" * 5000, 0.0),
        (409, "1", 0.0),
    ],
)
async def test_what_takes_longer_or_says_nothing_is_an_error_at_once(status: int, after: str, told: float) -> None:
    async with serving() as (server, kube):
        server.refusals = [(status, after)]
        with pytest.raises(KubeError) as refused:
            await kube.get(NODES, "n")
        assert (refused.value.status, refused.value.retry_after) == (status, told)
    assert len(server.asked_at) == 1


async def test_a_server_that_is_busy_for_good_is_not_asked_for_ever() -> None:
    async with serving() as (server, kube):
        server.refusals = [(429, "1"), (429, "15")]
        with pytest.raises(KubeError):
            await kube.get(NODES, "n")
    assert len(server.asked_at) == 2, "its waits together are longer than a request may take"
