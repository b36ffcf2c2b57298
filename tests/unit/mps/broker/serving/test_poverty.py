"""A broker without descriptors, and a daemon that hangs up."""

import asyncio
import os
import platform
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gpushare.mps.broker.broker import SCAN_SECONDS
from gpushare.mps.broker.letting_in import RETRY_SECONDS
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import RefusedAttach
from gpushare.process.procfs import TICKS_PER_SECOND, Owner
from tests.unit.few_files import descriptors, no_descriptors
from tests.unit.mps.broker.fake_daemon import (
    GREETING,
    HELLO,
    FakeDaemon,
    attach,
    connect,
)
from tests.unit.mps.broker.serving.scene import (
    ME,
    MINE,
    SHARE,
    Processes,
    grants,
    refusals,
    serving,
    socket_of,
    state,
    until,
)

SYS_CAPSET = {"x86_64": 126, "aarch64": 91}[platform.machine()]
SERVES = f"""
import asyncio, resource, sys
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.clock import boot_clock
from gpushare.process.procfs import Owner
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("{SHARE}", boot_clock, lambda pid: ({ME},))))
"""


@pytest.fixture
async def poor_broker(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[asyncio.subprocess.Process]:
    """A broker with 32 descriptors."""
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVES, str(gpu.path.parent))
    await until(gpu.attach_control.exists)
    yield running
    if running.returncode is None:
        running.kill()
    await running.wait()


async def test_a_broker_without_descriptors_goes_on_listening(
    gpu: GpuDir, poor_broker: asyncio.subprocess.Process
) -> None:
    def cpu_seconds() -> float:
        fields = Path(f"/proc/{poor_broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    before = socket_of(gpu)
    held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(60)]
    await asyncio.sleep(2 * SCAN_SECONDS)
    spent = cpu_seconds()
    await asyncio.sleep(2)
    assert cpu_seconds() - spent < 0.5
    for sock in held:
        sock.close()
    with await asyncio.to_thread(connect, gpu.attach_control) as sock:
        assert await asyncio.to_thread(sock.recv, 64) == GREETING
    assert (poor_broker.returncode, socket_of(gpu)) == (None, before)


async def test_grants_that_could_not_be_read_for_a_moment_are_read_again(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    write_model(gpu.grants, grants(MINE, closed="LimitsNotInForce"))
    opened = gpu.path / "opened"
    write_model(opened, grants(MINE))
    attaching = asyncio.create_task(processes.start(gpu.attach_control).attach())
    await asyncio.sleep(1.0)  # it waits at the broker, which looks for its grant again and again
    assert not attaching.done()
    with no_descriptors():
        opened.replace(gpu.grants)
        await asyncio.sleep(3 * RETRY_SECONDS)
    async with asyncio.timeout(10):
        assert await attaching == "in"


async def test_nobody_is_accepted_while_there_is_no_descriptor_to_look_who_it_is(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    def owners(_: int) -> Sequence[Owner] | None:
        try:
            os.close(os.open("/proc/self/cgroup", os.O_RDONLY))
        except OSError:
            return None
        return (ME,)

    async with serving(gpu, owners=owners):
        await until(gpu.attach_control.exists)
        client = processes.start(gpu.attach_control)
        await asyncio.to_thread(str)  # the first thread opens files
        with descriptors(left=1):
            attaching = asyncio.create_task(client.attach())
            await asyncio.sleep(1.5)
            assert not attaching.done()
        assert await attaching == "in"
        assert {reason for reason, _, _ in refusals(gpu)} <= {RefusedAttach.FAILED}


async def test_a_daemon_that_hangs_up_is_asked_again(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    daemon.hangs_up_at_attaches = 2
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    assert (daemon.attaches, refusals(gpu)) == (3, [])


PASSES_NONE = f"""
import ctypes, os, resource
nothing = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).syscall(ctypes.c_long({SYS_CAPSET}), (ctypes.c_uint32 * 2)(0x20080522, 0), nothing) == 0
{SERVES.replace("(32, 32)", "(64, 64)")}
"""
"""A broker without a capability, whose user may have 64 descriptors on their way."""


async def test_an_attach_without_a_descriptor_to_pass_is_told_and_tried_again(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", PASSES_NONE, str(gpu.path.parent))
    try:
        await until(gpu.attach_control.exists)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(ours, [b"x"], [0] * 100)
            attaching = asyncio.create_task(processes.start(gpu.attach_control).attach())
            await until(lambda: refusals(gpu) == [(RefusedAttach.FAILED, "app", 1)])
            assert "Too many references" in state(gpu).refusals[0].message
            others = [asyncio.create_task(processes.start(gpu.attach_control).attach()) for _ in range(2)]
            await until(lambda: "Too many references" in state(gpu).problem)
            assert not any(task.done() for task in (attaching, *others))
        assert sorted(await asyncio.gather(attaching, *others)) == ["in", "in", "refused"], "two processes are granted"
        await until(lambda: state(gpu).problem == "")
    finally:
        running.kill()
        await running.wait()


async def test_a_broker_without_descriptors_says_that_nobody_can_attach(
    gpu: GpuDir, poor_broker: asyncio.subprocess.Process
) -> None:
    held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(60)]
    await until(lambda: "no connection can be accepted" in state(gpu).problem)
    assert RefusedAttach.FAILED in [reason for reason, _, _ in refusals(gpu)]
    for sock in held:
        sock.close()
