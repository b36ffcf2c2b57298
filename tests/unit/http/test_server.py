"""How every part serves: what a client may not hold open, and what it is still answered when the server ends."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from gpushare.http.server import ServerLimits, serve

SHORT, LONG = 0.2, 60.0
HEAD = b"GET / HTTP/1.1\r\nHost: webhook\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Connection]]


def app(handler: Callable[[web.Request], Awaitable[web.Response]] | None = None) -> web.Application:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    application = web.Application()
    application.add_routes([web.get("/", handler or ok)])
    return application


@pytest.fixture
async def connect(free_port: int) -> AsyncIterator[Connect]:
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        opened.append(writer)
        return reader, writer

    yield connect
    for writer in opened:
        writer.close()


async def closed(connection: Connection) -> bool:
    """Whether the server closes within a few seconds, without an answer."""
    async with asyncio.timeout(5):
        return await connection[0].read() == b""


async def exchange(connection: Connection) -> bytes:
    reader, writer = connection
    writer.write(HEAD)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await reader.readexactly(2)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD[:-2]], ids=["nothing", "half a line", "no end of the head"])
async def test_a_connection_without_a_whole_request_is_closed(free_port: int, connect: Connect, sent: bytes) -> None:
    limits = ServerLimits(head_seconds=SHORT, keepalive_seconds=LONG)
    async with serve(app(), free_port, limits=limits):
        connection = await connect()
        connection[1].write(sent)
        assert await closed(connection)


async def test_a_connection_that_sent_a_request_is_kept_for_the_next(free_port: int, connect: Connect) -> None:
    limits = ServerLimits(head_seconds=SHORT, keepalive_seconds=LONG)
    async with serve(app(), free_port, limits=limits):
        kept, silent = await connect(), await connect()
        assert (await exchange(kept)).startswith(b"HTTP/1.1 200")
        assert await closed(silent), "the limit for the first request is over"
        assert (await exchange(kept)).startswith(b"HTTP/1.1 200")


async def test_an_idle_connection_is_closed_after_the_keep_alive(free_port: int, connect: Connect) -> None:
    async with serve(app(), free_port, limits=ServerLimits(head_seconds=LONG, keepalive_seconds=SHORT)):
        connection = await connect()
        await exchange(connection)
        assert await closed(connection)


async def test_a_connection_above_the_limit_is_closed_and_the_others_go_on(free_port: int, connect: Connect) -> None:
    async with serve(app(), free_port, limits=ServerLimits(connections=1)):
        first = await connect()
        await exchange(first)
        assert await closed(await connect())
        assert (await exchange(first)).startswith(b"HTTP/1.1 200")


async def test_a_client_that_never_begins_the_handshake_is_closed(free_port: int, connect: Connect) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with serve(app(), free_port, tls=tls, limits=ServerLimits(handshake_seconds=SHORT)):
        assert await closed(await connect())


async def test_a_request_under_way_is_answered_when_the_server_ends(free_port: int, connect: Connect) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        began.set()
        await go_on.wait()
        return web.Response(text="ok")

    async with asyncio.timeout(10):
        async with serve(app(slow), free_port, limits=ServerLimits(drain_seconds=LONG)):
            answer = asyncio.create_task(exchange(await connect()))
            await began.wait()
            asyncio.get_running_loop().call_later(SHORT, go_on.set)
        head = await answer
    assert head.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in head, "the next request goes to another replica"
    with pytest.raises(ConnectionRefusedError):
        await connect()


async def test_a_request_that_never_ends_does_not_hold_up_the_end(free_port: int, connect: Connect) -> None:
    began = asyncio.Event()

    async def endless(_: web.Request) -> web.Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(10):
        async with serve(app(endless), free_port, limits=ServerLimits(drain_seconds=SHORT)):
            connection = await connect()
            connection[1].write(HEAD)
            await began.wait()
        assert await closed(connection)


async def test_an_answer_does_not_say_what_serves_it(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}/"
    async with serve(app(), free_port), aiohttp.ClientSession() as session, session.get(url) as answer:
        assert "Server" not in answer.headers


async def test_a_port_that_is_taken_is_an_error(free_port: int) -> None:
    async with serve(app(), free_port):
        with pytest.raises(OSError, match=r"(?i)address already in use"):
            async with serve(app(), free_port):
                pass
