"""The broker takes every socket that the MPS daemon gives it, soon, late or after it has given up: one that is dropped
hangs the server.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from gpushare.mps.broker.daemon import BrokeredDaemon, ServerSocket
from gpushare.mps.broker.kept_sockets import UnderWay
from gpushare.mps.layout import GpuDir
from gpushare.mps.packets import SOON_SECONDS
from gpushare.mps.wire import QueuedKind, QueuedSocket
from tests.unit.mps.broker.fake_daemon import HELLO, SERVER, FakeDaemon, open_descriptors

FOR_SOMEBODY = QueuedSocket(kind=QueuedKind.PASSED)


@pytest.fixture
def daemon(gpu: GpuDir) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(gpu.client_control)
    yield daemon
    daemon.close()


def copy_of(passed: ServerSocket) -> socket.socket:
    return socket.socket(fileno=os.dup(passed.fileno()))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the daemon's threads change what it looks at
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("late", [0.0, 50 * SOON_SECONDS])
async def test_a_socket_to_the_server_is_taken_soon_and_late(daemon: FakeDaemon, gpu: GpuDir, late: float) -> None:
    brokered = BrokeredDaemon(gpu)
    before = open_descriptors()
    if late:
        daemon.gives_sockets.clear()
        asyncio.get_running_loop().call_later(late, daemon.gives_sockets.set)
    with await brokered.client_socket(FOR_SOMEBODY, UnderWay()) as passed, copy_of(passed) as sock:
        sock.send(b"who I am")
        assert await asyncio.to_thread(sock.recv, 64) == HELLO
    async with asyncio.timeout(5):
        await brokered.until_free(SERVER)
    await until(lambda: open_descriptors() == before)


async def test_a_socket_that_comes_after_the_client_was_given_up_hangs_nobody(daemon: FakeDaemon, gpu: GpuDir) -> None:
    brokered = BrokeredDaemon(gpu)
    before = open_descriptors()
    daemon.gives_sockets.clear()
    asking = asyncio.create_task(brokered.client_socket(FOR_SOMEBODY, UnderWay()))
    await until(lambda: daemon.attaches)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    daemon.gives_sockets.set()
    await until(lambda: daemon.passed)
    async with asyncio.timeout(5):
        await brokered.until_free(SERVER)
    await until(lambda: open_descriptors() == before)
