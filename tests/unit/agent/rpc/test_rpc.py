"""Questions and answers over unix sockets, with peers that vanish, hang, or send too much."""

import asyncio
import gc
import socket as sockets
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from h2.connection import H2Connection
from h2.events import Event, PingAckReceived, ResponseReceived
from h2.settings import SettingCodes

from gpushare.agent.proto import deviceplugin_v1beta1_grpc as services
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.rpc.client import RpcChannel, RpcError, ask
from gpushare.agent.rpc.server import MAX_REQUEST_BYTES, RpcServer, received

MIB = 1024 * 1024
LONG = 30.0
"""No test waits so long unless the product hangs."""


class Registration(services.RegistrationBase):  # type: ignore[misc]
    """Refuses, with its text, where it has one; else waits for `free` before it answers."""

    def __init__(self) -> None:
        self.refusal = ""
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.broken_off = asyncio.Event()

    async def Register(self, stream: Any) -> None:
        await received(stream)
        self.asked.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.broken_off.set()
            raise
        if self.refusal:
            raise GRPCError(Status.FAILED_PRECONDITION, self.refusal)
        await stream.send_message(messages.Empty())


class Large(Registration):
    """Answers with `size` bytes, in a field that nobody knows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._answer = messages.Empty()
        self._answer.MergeFromString(messages.RegisterRequest(version="x" * size).SerializeToString())

    async def Register(self, stream: Any) -> None:
        await received(stream)
        self.asked.set()
        await stream.send_message(self._answer)


@pytest.fixture
def path() -> Iterator[Path]:
    """Short: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="rpc-") as folder:
        yield Path(folder) / "socket"


@asynccontextmanager
async def served(path: Path, service: Any) -> AsyncIterator[RpcServer]:
    server = RpcServer([service])
    await server.start(path)
    try:
        yield server
    finally:
        await server.stop(None)


@asynccontextmanager
async def peer(path: Path, sent: bytes | None) -> AsyncIterator[None]:
    """A server that says `sent` and then nothing; with None it closes every connection."""
    ended = asyncio.Event()

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if sent is not None:
            writer.write(sent)
            await ended.wait()
        writer.close()

    server = await asyncio.start_unix_server(accepted, path)
    try:
        yield
    finally:
        ended.set()
        server.close()


async def register(channel: RpcChannel, name: str = "", seconds: float = LONG) -> Any:
    return await ask(services.RegistrationStub(channel).Register, messages.RegisterRequest(version=name), seconds)


@pytest.mark.parametrize(
    "refusal", ["GPU GPU-1 does not belong to GpuShare a any more", "50 % of\n2 GiB – größer", "x" * 10_000]
)
async def test_a_refusal_reaches_the_peer_word_for_word(path: Path, refusal: str) -> None:
    service = Registration()
    service.refusal = refusal
    async with served(path, service), RpcChannel(path) as channel:
        with pytest.raises(RpcError) as refused:
            await register(channel)
    assert str(refused.value) == f"FAILED_PRECONDITION: {refusal}"


async def test_a_request_above_the_limit_fails_alone(path: Path) -> None:
    async with served(path, Registration()), RpcChannel(path) as channel:
        with pytest.raises(RpcError):
            await register(channel, "x" * (MAX_REQUEST_BYTES + 1))
        await register(channel, "x" * (MAX_REQUEST_BYTES - 100))


async def test_an_answer_above_the_limit_is_an_error_that_names_it(path: Path) -> None:
    async with served(path, Large(131071)), RpcChannel(path, limit=100_000) as channel:
        with pytest.raises(RpcError, match="more than 100000 bytes"):
            await register(channel)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(None, "UNAVAILABLE"), (b"", "DEADLINE_EXCEEDED"), (b"\0\0\4\x08" + b"\0" * 9, "UNAVAILABLE")],
    ids=["closes", "is silent", "breaks the protocol"],
)
async def test_a_question_to_a_peer_that_never_answers_is_an_error(path: Path, sent: bytes | None, reason: str) -> None:
    async with peer(path, sent), RpcChannel(path) as channel:
        began = time.monotonic()
        with pytest.raises(RpcError, match=reason):
            await register(channel, seconds=0.3)
    assert time.monotonic() - began < LONG / 2


class Late(RpcChannel):
    """Hears of its connection only once it has ended, as in a process that is busy."""

    async def _create_connection(self) -> H2Protocol:
        made = await super()._create_connection()
        while not made.connection.is_closing():  # noqa: ASYNC110 - grpclib has no event for it
            await asyncio.sleep(0.01)
        return made


async def test_a_connection_that_ends_before_the_question_says_so(path: Path) -> None:
    async with peer(path, None), Late(path) as channel:
        with pytest.raises(RpcError, match="UNAVAILABLE: the peer closed the connection before"):
            await register(channel)


async def test_a_method_that_nobody_serves_is_refused_as_grpc_says_it(path: Path) -> None:
    async with served(path, Registration()):
        with sockets.socket(sockets.AF_UNIX) as stranger:
            stranger.connect(str(path))
            stranger.settimeout(LONG)
            asking = H2Connection()
            stranger.sendall(question(asking, "/v1beta1.Registration/Invented"))
            answer = await event_of(ResponseReceived, asking, stranger)
    headers = dict(answer.headers)
    assert headers[b"content-type"].startswith(b"application/grpc")
    assert int(headers[b"grpc-status"]) == Status.UNIMPLEMENTED.value


async def test_a_question_to_nobody_is_an_error(path: Path) -> None:
    async with RpcChannel(path) as channel:
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await register(channel)
        async with served(path, Registration()):
            await register(channel)


@pytest.mark.parametrize("vanishes", [False, True], ids=["deadline", "peer vanishes"])
async def test_a_failed_question_leaves_the_askers_time_limits(path: Path, vanishes: bool) -> None:
    service = Registration()
    service.free.clear()

    async def asking() -> None:
        async with asyncio.timeout(LONG) as limit:
            with pytest.raises(RpcError):
                await register(channel, seconds=LONG if vanishes else 0.2)
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(LONG)

    async with served(path, service) as server, RpcChannel(path) as channel:
        task = asyncio.create_task(asking())
        if vanishes:
            await service.asked.wait()
            await server.stop(None)
        with pytest.raises(TimeoutError):
            await task
    assert task.cancelling() == 0


async def test_who_asks_can_be_cancelled_and_the_peer_is_told(path: Path) -> None:
    service = Registration()
    service.free.clear()
    async with served(path, service), RpcChannel(path) as channel:
        asking = asyncio.create_task(register(channel))
        await service.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(LONG):
            await service.broken_off.wait()


async def test_a_cancellation_is_not_lost_when_the_peer_vanishes_with_it(path: Path) -> None:
    service = Registration()
    service.free.clear()
    async with served(path, service), RpcChannel(path) as channel:
        asking = asyncio.create_task(register(channel))
        await service.asked.wait()
        channel.close()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_the_deadline_of_who_asks_ends_the_work_for_the_answer(path: Path) -> None:
    service = Registration()
    service.free.clear()
    async with served(path, service), RpcChannel(path) as channel, asyncio.timeout(LONG):
        while not service.asked.is_set():  # on a busy machine the time is over before it is asked
            with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
                await register(channel, seconds=0.2)
        await service.broken_off.wait()


async def test_a_server_that_stops_lets_calls_end_within_its_grace(path: Path) -> None:
    service = Registration()
    service.free.clear()
    async with served(path, service) as server, RpcChannel(path) as channel:
        answered = asyncio.create_task(register(channel))
        await service.asked.wait()
        stopping = asyncio.create_task(server.stop(LONG))
        service.free.set()
        await asyncio.gather(answered, stopping)
    service.free.clear()
    service.asked.clear()
    async with served(path, service) as server, RpcChannel(path) as channel:
        broken = asyncio.create_task(register(channel))
        await service.asked.wait()
        await server.stop(None)
        assert service.broken_off.is_set()
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await broken


async def test_a_server_stops_though_a_peer_neither_reads_its_answer_nor_leaves(path: Path) -> None:
    service = Large(3 * MIB)
    async with served(path, service) as server:
        with sockets.socket(sockets.AF_UNIX) as idle:
            idle.connect(str(path))
            idle.sendall(question(H2Connection()))
            await service.asked.wait()
            async with asyncio.timeout(LONG):
                await server.stop(None)


async def test_a_server_waits_for_no_call_cancelled_in_its_first_packet(path: Path) -> None:
    async with served(path, Registration()) as server:
        with sockets.socket(sockets.AF_UNIX) as fickle:
            fickle.connect(str(path))
            asking = H2Connection()
            asked = question(asking, "/v1beta1.Registration/Register", ended=False)
            asking.reset_stream(1)
            asking.ping(b"received")
            fickle.settimeout(LONG)
            fickle.sendall(asked + asking.data_to_send())
            await event_of(PingAckReceived, asking, fickle)
            began = time.monotonic()
            await server.stop(LONG)
    assert time.monotonic() - began < LONG / 2


async def event_of(kind: type[Event], connection: H2Connection, socket: sockets.socket) -> Any:
    """The next one that the peer sends."""
    while data := await asyncio.to_thread(socket.recv, 4096):
        for event in connection.receive_data(data):
            if isinstance(event, kind):
                return event
    raise EOFError(kind.__name__)


def question(connection: H2Connection, method: str = "/v1beta1.Registration/Register", ended: bool = True) -> bytes:
    """What a client sends that has room for a large answer."""
    connection.initiate_connection()
    connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 4 * MIB})
    connection.increment_flow_control_window(4 * MIB)
    asked = {":method": "POST", ":scheme": "http", ":authority": "a", ":path": method}
    connection.send_headers(1, [*asked.items(), ("te", "trailers"), ("content-type", "application/grpc")])
    connection.send_data(1, b"\0" * 5, end_stream=ended)
    return connection.data_to_send()


async def test_a_peer_that_speaks_no_http2_is_sent_away_and_others_are_served(path: Path) -> None:
    async with served(path, Registration()), RpcChannel(path) as channel:
        with sockets.socket(sockets.AF_UNIX) as stranger:
            stranger.connect(str(path))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 10)
            await register(channel)
            stranger.settimeout(LONG)
            while await asyncio.to_thread(stranger.recv, 4096):
                pass


async def test_a_connections_memory_does_not_grow_with_questions(path: Path) -> None:
    """The agent asks the kubelet on one connection for months."""
    async with served(path, Registration()), RpcChannel(path) as channel:
        tracemalloc.start()
        try:
            taken = []
            for _ in range(2):
                for _ in range(700):
                    await register(channel)
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert taken[1] - taken[0] < 30_000
