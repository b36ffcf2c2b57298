"""How every part serves: what a client may not hold open, and what it is still answered when the server ends."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpushare.controller.webhook_certificates.authority import BUNDLE, renewed_authority, renewed_serving
from gpushare.http.connection import ServerLimits
from gpushare.http.server import BodyTooLargeError, read_body, serve

SHORT, LONG = 0.2, 60.0
HEAD = b"GET / HTTP/1.1\r\nHost: webhook\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Coroutine[Any, Any, Connection]]
OTHER = "127.0.0.2"
"""Another address of the same machine."""


def app(handler: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None) -> web.Application:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    application = web.Application()
    application.add_routes([web.get("/", handler or ok)])
    return application


@pytest.fixture
async def connect(free_port: int) -> AsyncIterator[Connect]:
    opened: list[asyncio.StreamWriter] = []

    async def connect(address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port, local_addr=(address, 0), ssl=tls)
        opened.append(writer)
        return reader, writer

    yield connect
    for writer in opened:
        writer.close()


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(the server's, a client's that trusts it)"""
    now = datetime.now(UTC)
    authority = renewed_authority({}, {}, now)
    assert authority is not None
    chain = renewed_serving({}, authority, ["webhook"], now)
    assert chain is not None
    (tmp_path / "chain").write_bytes(chain["tls.key"] + b"\n" + chain["tls.crt"])
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=chain[BUNDLE].decode())
    server.load_cert_chain(tmp_path / "chain")
    client.check_hostname = False
    return server, client


async def closed(connection: Connection) -> bool:
    """Tells whether the server closes within a few seconds, without an answer."""
    async with asyncio.timeout(5):
        try:
            return await connection[0].read() == b""
        except ConnectionResetError:
            return True


async def exchange(connection: Connection) -> bytes:
    reader, writer = connection
    writer.write(HEAD)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await reader.readexactly(2)


@pytest.mark.parametrize("sent", [b"GET / HT", HEAD[:-2]], ids=["half a line", "no end of the head"])
async def test_a_connection_without_a_whole_request_is_closed(free_port: int, connect: Connect, sent: bytes) -> None:
    limits = ServerLimits(head_seconds=SHORT, keepalive_seconds=LONG)
    async with serve(app(), free_port, limits=limits):
        connection = await connect()
        connection[1].write(sent)
        assert await closed(connection)


async def test_a_connection_is_kept_as_long_for_its_first_request(free_port: int, connect: Connect) -> None:
    """Go's client opens one for each request of a burst, and keeps those that it did not need in the end."""
    limits = ServerLimits(head_seconds=SHORT, keepalive_seconds=LONG)
    async with serve(app(), free_port, limits=limits):
        used, unused, begun = await connect(), await connect(), await connect()
        assert (await exchange(used)).startswith(b"HTTP/1.1 200")
        begun[1].write(HEAD[:-2])
        assert await closed(begun), "the limit for the first request is over"
        for connection in (used, unused, used, unused):
            assert (await exchange(connection)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("requests", [0, 1])
async def test_an_idle_connection_is_closed_after_the_keep_alive(
    free_port: int, connect: Connect, requests: int
) -> None:
    async with serve(app(), free_port, limits=ServerLimits(head_seconds=LONG, keepalive_seconds=SHORT)):
        connection = await connect()
        for _ in range(requests):
            await exchange(connection)
        assert await closed(connection)


async def test_a_connection_above_the_limit_is_closed_and_the_others_go_on(free_port: int, connect: Connect) -> None:
    async with serve(app(), free_port, limits=ServerLimits(connections=1)):
        first = await connect()
        await exchange(first)
        assert await closed(await connect())
        assert (await exchange(first)).startswith(b"HTTP/1.1 200")


async def test_who_holds_all_connections_gives_way_to_others(free_port: int, connect: Connect) -> None:
    async with serve(app(), free_port, limits=ServerLimits(connections=3)):
        holder = [await connect() for _ in range(3)]
        for connection in holder:
            await exchange(connection)
        other = await connect(OTHER)
        assert (await exchange(other)).startswith(b"HTTP/1.1 200")
        assert await closed(holder[0]), "the one that was idle longest"
        for connection in (*holder[1:], other):
            assert (await exchange(connection)).startswith(b"HTTP/1.1 200")


async def test_a_request_that_is_worked_on_keeps_its_connection(free_port: int, connect: Connect) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        began.set()
        await go_on.wait()
        return web.Response(text="ok")

    async with serve(app(slow), free_port, limits=ServerLimits(connections=1)):
        answer = asyncio.create_task(exchange(await connect()))
        await began.wait()
        assert await closed(await connect(OTHER)), "there is no room, and nobody who could give way"
        go_on.set()
        assert (await answer).startswith(b"HTTP/1.1 200")


async def test_beside_hundreds_that_say_nothing_one_is_answered(
    free_port: int, connect: Connect, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server_tls, client_tls = tls
    limits = ServerLimits(connections=16, handshake_seconds=LONG, head_seconds=LONG)
    async with serve(app(), free_port, tls=server_tls, limits=limits):
        silent = [await connect() for _ in range(300)]
        spoken = [asyncio.create_task(connect(tls=client_tls)) for _ in range(50)]
        for address in (OTHER, "127.0.0.1"):
            assert (await exchange(await connect(address, tls=client_tls))).startswith(b"HTTP/1.1 200")
        assert await closed(silent[0])
        await asyncio.gather(*spoken, return_exceptions=True)


async def test_who_takes_no_answer_is_closed(free_port: int, connect: Connect) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 1024 * 1024)
        finally:
            ended.set()

    async with serve(app(endless), free_port, limits=ServerLimits(answer_seconds=SHORT)):
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEAD)
        async with asyncio.timeout(5):
            await ended.wait()


@pytest.mark.parametrize(("size", "taken"), [(10, b"10"), (11, b"413")])
async def test_a_body_is_read_up_to_its_limit(free_port: int, connect: Connect, size: int, taken: bytes) -> None:
    async def count(request: web.Request) -> web.Response:
        try:
            return web.Response(text=str(len(await read_body(request, 10))))
        except BodyTooLargeError as error:
            return web.Response(text=f"{error.size}", status=413)

    async with serve(app(count), free_port):
        reader, writer = await connect()
        writer.write(f"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size)
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"\r\n\r\n")
            answer += await reader.readexactly(2)
        assert taken in answer


@pytest.mark.parametrize("head", [b"X: y\r\n" * 40, b"X: " + b"y" * 5000 + b"\r\n"], ids=["many", "long"])
async def test_a_head_is_read_up_to_its_limit_and_never_logged(
    free_port: int, connect: Connect, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(app(), free_port):
        reader, writer = await connect()
        writer.write(HEAD[:-2] + head + b"\r\n")
        async with asyncio.timeout(5):
            assert b" 400 Bad Request" in await reader.read()
    assert caplog.messages == []


async def test_a_fault_of_ours_is_logged(free_port: int, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(_: web.Request) -> web.Response:
        raise RuntimeError("of ours")

    async with serve(app(faulty), free_port):
        reader, writer = await connect()
        writer.write(HEAD)
        async with asyncio.timeout(5):
            assert (await reader.readuntil()).startswith(b"HTTP/1.1 500")
    assert "of ours" in caplog.text


async def count(request: web.Request) -> web.Response:
    return web.Response(text=str(len(await read_body(request, 1_000_000))))


def large(size: int, sent: int) -> bytes:
    """A request whose body says that it has `size` bytes."""
    return f"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * sent


async def status(connection: Connection) -> bytes:
    async with asyncio.timeout(5):
        return (await connection[0].readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0]


async def test_who_sends_large_bodies_and_never_ends_them_gives_way(free_port: int, connect: Connect) -> None:
    async with serve(app(count), free_port, limits=ServerLimits(body_bytes=500_000)):
        greedy = [await connect() for _ in range(4)]
        for connection in greedy:
            connection[1].write(large(999_999, 200_000))
        ends = [asyncio.create_task(closed(connection)) for connection in greedy]
        other = await connect(OTHER)
        other[1].write(large(90_000, 90_000))
        assert await status(other) == b"HTTP/1.1 200 OK"
        done, held = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert all([await task for task in done])
        for task in held:
            task.cancel()


async def test_a_body_one_byte_above_the_memory_reaches_no_handler(free_port: int, connect: Connect) -> None:
    handled, began, go_on = list[int](), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        handled.append(len(await read_body(request, 1_000_000)))
        began.set()
        await go_on.wait()
        return web.Response(text="ok")

    async with serve(app(slow), free_port, limits=ServerLimits(body_bytes=500_000)):
        first, late = await connect(), await connect(OTHER)
        first[1].write(large(300_000, 300_000))
        await began.wait()
        late[1].write(large(200_001, 200_001))
        assert await closed(late)
        assert handled == [300_000]
        go_on.set()
        assert await status(first) == b"HTTP/1.1 200 OK"


async def test_a_body_that_was_answered_takes_nothing_any_more(free_port: int, connect: Connect) -> None:
    async with serve(app(count), free_port, limits=ServerLimits(body_bytes=500_000)):
        kept = [await connect(address) for address in ("127.0.0.1", OTHER, "127.0.0.3")]
        for connection in kept:
            connection[1].write(large(300_000, 300_000))
            assert await status(connection) == b"HTTP/1.1 200 OK"


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
