"""The broker against a daemon that speaks the measured protocol, over real sockets."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare.broker.broker import MAX_CONNECTIONS_PER_CGROUP, SCAN_SECONDS, Broker, serve
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import BrokerState
from tests.unit.broker.fake_daemon import (
    ATTACH,
    COMMAND,
    CREDENTIALS,
    GREETING,
    FakeDaemon,
    attach,
    connect,
    open_descriptors,
)

SHARE = "inference"


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    gpu = GpuDir(tmp_path / "GPU-0")
    for directory in (gpu.client, gpu.attach, gpu.broker):
        directory.mkdir(parents=True)
    gpu.client_share.write_text(SHARE)
    return gpu


@pytest.fixture
def daemon(gpu: GpuDir) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(gpu.client_control)
    yield daemon
    daemon.close()


@pytest.fixture
async def broker(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[None]:
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        yield


@asynccontextmanager
async def serving(gpu: GpuDir, share: str = SHARE) -> AsyncIterator[None]:
    """The broker of the MPS pod of `share`, as its process runs it."""
    running = asyncio.create_task(serve(gpu.path.parent, share, clock=lambda: 7.0))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads and the file system change what it looks at
            await asyncio.sleep(0.01)


def socket_of(gpu: GpuDir) -> tuple[int, int]:
    """Which socket has the name; a file system may give an inode's number to the next one."""
    found = gpu.attach_control.stat()
    return found.st_ino, found.st_ctime_ns


def state(gpu: GpuDir) -> BrokerState:
    found = read_model(gpu.broker_state, BrokerState).value
    assert found is not None
    return found


async def test_a_client_gets_its_socket_to_the_server(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"
    await until(lambda: daemon.heard[-1] == [CREDENTIALS, ATTACH, b"\0\0\0\0"])
    await until(lambda: state(gpu).attached == 1)


async def test_the_daemon_sees_the_brokers_credentials(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    await asyncio.to_thread(attach, gpu.attach_control)
    assert set(daemon.uids) == {os.geteuid()}


async def test_no_command_reaches_the_daemon_not_even_its_request(
    gpu: GpuDir, broker: None, daemon: FakeDaemon
) -> None:
    before = len(daemon.heard)

    def command() -> bytes:
        with connect(gpu.attach_control) as sock:
            assert sock.recv(64) == GREETING
            sock.send(CREDENTIALS)
            sock.send(COMMAND)
            return sock.recv(64)

    assert await asyncio.to_thread(command) == b""
    assert len(daemon.heard) == before
    await until(lambda: state(gpu).refused == 1)


@pytest.mark.parametrize(
    "messages",
    [(b"OUTBHELL\0",), (CREDENTIALS, b"\x05\0\0\0"), (CREDENTIALS, b"\x02"), (b"x" * 9000,)],
    ids=["a greeting", "an unknown request", "a short request", "more than any message has"],
)
async def test_other_messages_are_refused(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, messages: tuple[bytes, ...]
) -> None:
    before = len(daemon.heard)

    def talk() -> bytes:
        with connect(gpu.attach_control) as sock:
            sock.recv(64)
            for message in messages:
                sock.send(message)
            return sock.recv(64)

    assert await asyncio.to_thread(talk) == b""
    assert len(daemon.heard) == before


async def test_a_client_passes_no_descriptor_on_and_none_of_them_stays_open(
    gpu: GpuDir, broker: None, daemon: FakeDaemon
) -> None:
    daemon.answers.clear()
    before = open_descriptors()

    def smuggle() -> bytes:
        with connect(gpu.attach_control) as sock, open("/dev/null") as file:  # noqa: PTH123
            sock.recv(64)
            sock.send(CREDENTIALS)
            sock.send(ATTACH)
            socket.send_fds(sock, [b"\0\0\0\0"], [file.fileno()])
            return sock.recv(64)

    assert await asyncio.to_thread(smuggle) == b""
    daemon.answers.set()
    await until(lambda: open_descriptors() <= before)


async def test_whoever_only_looks_costs_the_daemon_nothing(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    before = len(daemon.heard)

    def look() -> bytes:
        with connect(gpu.attach_control) as sock:
            return sock.recv(64)

    assert await asyncio.to_thread(look) == GREETING
    assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"
    assert len(daemon.heard) == before + 1


async def test_one_container_cannot_keep_others_from_attaching(gpu: GpuDir, daemon: FakeDaemon, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / str(os.getpid())).mkdir(parents=True)
    cgroup = proc / str(os.getpid()) / "cgroup"
    cgroup.write_text("0::/kubepods/greedy\n")
    broker = Broker(gpu, SHARE, lambda: 0.0, proc)
    await broker.step()
    held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(MAX_CONNECTIONS_PER_CGROUP)]
    for sock in held:
        assert await asyncio.to_thread(sock.recv, 64) == GREETING
    with await asyncio.to_thread(connect, gpu.attach_control) as one_more:
        assert await asyncio.to_thread(one_more.recv, 64) == b""
    cgroup.write_text("0::/kubepods/modest\n")
    assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"
    for sock in held:
        sock.close()
    await broker.close()


async def test_the_socket_is_there_exactly_while_the_supervisor_lets_clients_in(gpu: GpuDir, broker: None) -> None:
    gpu.client_control.unlink()
    await until(lambda: not gpu.attach_control.exists())
    FakeDaemon(gpu.client_control)
    await until(gpu.attach_control.exists)
    assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"


async def test_a_broker_that_starts_again_takes_over_and_the_name_stays(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        before = socket_of(gpu)
    assert gpu.attach_control.exists()
    async with serving(gpu):
        await until(lambda: socket_of(gpu) != before)
        assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"


async def test_a_gpu_that_goes_to_another_share_is_left_to_that_shares_broker(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu, SHARE), serving(gpu, "other"):
        await until(gpu.attach_control.exists)
        before = socket_of(gpu)
        gpu.client_share.write_text("other")
        await until(lambda: gpu.attach_control.exists() and socket_of(gpu) != before)
        await asyncio.sleep(2 * SCAN_SECONDS)
        assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"


async def test_without_a_daemon_behind_it_the_broker_says_why_and_lets_nobody_in(gpu: GpuDir) -> None:
    FakeDaemon(gpu.client_control).close()
    await Broker(gpu, SHARE, clock=lambda: 7.0).step()
    found = state(gpu)
    assert (found.listening, found.heartbeat) == (False, 7.0)
    assert "the MPS daemon cannot be reached" in found.problem
    assert not gpu.attach_control.exists()


async def test_a_daemon_that_does_not_greet_holds_up_no_other_gpus_broker(gpu: GpuDir, daemon: FakeDaemon) -> None:
    silent = GpuDir(gpu.path.parent / "GPU--before")
    for directory in (silent.client, silent.attach, silent.broker):
        directory.mkdir(parents=True)
    silent.client_share.write_text(SHARE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wedged:
        wedged.bind(str(silent.client_control))
        wedged.listen(1)
        async with serving(gpu):
            await until(gpu.attach_control.exists)
            assert read_model(silent.broker_state, BrokerState).absent, "it is still being asked"
            assert await asyncio.to_thread(attach, gpu.attach_control) == b"hello from the server"
            await until(lambda: read_model(silent.broker_state, BrokerState).value is not None)
    assert "TimeoutError" in state(silent).problem
    assert not silent.attach_control.exists()
