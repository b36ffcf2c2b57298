"""What the broker makes of a container that says that it is being stopped."""

import asyncio

import pytest

from gpushare.mps.attach_protocol import Request, request_message
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import GrantedContainer
from tests.unit.mps.broker.fake_daemon import CREDENTIALS, GREETING, FakeDaemon, attach, connect
from tests.unit.mps.broker.serving.scene import (
    GRANT,
    ME,
    MINE,
    OTHER_POD,
    POD,
    grants,
    pod,
    refusals,
    serving,
    state,
    until,
)

STOPPING = request_message(Request.STOPPING)


def say_stopping(gpu: GpuDir) -> bytes:
    """Returns what the broker answers; empty when it has hung up."""
    with connect(gpu.attach_control) as sock:
        assert sock.recv(64) == GREETING
        sock.send(CREDENTIALS)
        sock.send(STOPPING)
        return sock.recv(64)


def stopping(gpu: GpuDir) -> list[tuple[str, str]]:
    return [(item.pod_uid, item.container_id) for item in state(gpu).stopping]


async def test_a_container_that_is_being_stopped_is_written_down(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    before = len(daemon.heard)
    assert await asyncio.to_thread(say_stopping, gpu) == b""
    assert stopping(gpu) == [(POD, ME.container_id)]
    assert (len(daemon.heard), refusals(gpu), state(gpu).refused) == (before, [], 0)


async def test_who_says_so_again_and_again_is_written_down_once(gpu: GpuDir, broker: None) -> None:
    for _ in range(3):
        await asyncio.to_thread(say_stopping, gpu)
    assert stopping(gpu) == [(POD, ME.container_id)]


@pytest.mark.parametrize(
    "granted",
    [
        pytest.param(pod(OTHER_POD, GrantedContainer(name="app", id="b" * 64, grant=GRANT)), id="of another pod"),
        pytest.param(pod(POD, GrantedContainer(name="side", id=ME.container_id)), id="beside the one with a part"),
    ],
)
async def test_a_container_without_a_part_tells_nothing(gpu: GpuDir, daemon: FakeDaemon, granted: object) -> None:
    write_model(gpu.grants, grants(granted))  # type: ignore[arg-type]
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        await asyncio.to_thread(say_stopping, gpu)
        await until(lambda: state(gpu).listening)
        assert stopping(gpu) == []


async def test_a_container_is_stopped_while_its_gpu_takes_nobody(gpu: GpuDir, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants(MINE, closed="its limits change"))
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        await asyncio.to_thread(say_stopping, gpu)
        assert stopping(gpu) == [(POD, ME.container_id)]


async def test_others_attach_as_before(gpu: GpuDir, broker: None) -> None:
    await asyncio.to_thread(say_stopping, gpu)
    assert await asyncio.to_thread(attach, gpu.attach_control)
