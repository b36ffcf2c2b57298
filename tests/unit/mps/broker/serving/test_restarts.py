"""A broker that is killed leaves its listening socket to the supervisor, so that nobody finds no listener meanwhile."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.mps.broker import kept_listener
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import ListenerAction, ListenerAnswer, ListenerRequest, decode, encode
from tests.unit.mps.broker.fake_daemon import SERVER, Commands, FakeDaemon, attach, connect
from tests.unit.mps.broker.serving.scene import CEILING, ME, SHARE, Processes, serving, socket_of, until

BROKER = f"""
import asyncio, sys
from pathlib import Path
from gpushare.mps.broker.broker import serve
from gpushare.mps.clock import boot_clock
from gpushare.process.procfs import Owner
asyncio.run(serve(Path(sys.argv[1]), "{SHARE}", boot_clock, lambda pid: ({ME},)))
"""


async def started(gpu: GpuDir) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", BROKER, str(gpu.path.parent))


async def is_kept(gpu: GpuDir) -> bool:
    kept = await kept_listener.take(gpu)
    if kept is None:
        return False
    kept[0].close()
    return kept[1] == gpu.attach_control.stat().st_ino


async def until_kept(gpu: GpuDir) -> None:
    async with asyncio.timeout(10):
        while not await is_kept(gpu):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.05)


async def killed(broker: asyncio.subprocess.Process) -> None:
    broker.kill()
    await broker.wait()


async def test_whoever_comes_while_no_broker_runs_waits_and_gets_in(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    name = socket_of(gpu)
    for _ in range(3):
        await until_kept(gpu)
        await killed(broker)
        process = processes.start(gpu.attach_control)
        waiting = asyncio.create_task(process.attach())
        await asyncio.sleep(0.3)
        assert not waiting.done(), "it found no listener"
        broker = await started(gpu)
        assert await waiting == "in"
        assert socket_of(gpu) == name, "another socket"
        await process.end()
    await killed(broker)


async def test_a_supervisor_that_starts_again_gets_the_listening_socket_too(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu):
        await until_kept(gpu)
        second = TurnServer(gpu, Commands(), lambda: Terms(SERVER, CEILING), threading.Lock(), os.geteuid())
        second.start()
        await until_kept(gpu)
        second.end()


async def test_nobody_waits_at_a_gpu_that_lets_nobody_in(
    gpu: GpuDir, daemon: FakeDaemon, turns: TurnServer, processes: "Processes"
) -> None:
    broker = await started(gpu)
    await until_kept(gpu)
    await killed(broker)
    waiting = asyncio.create_task(asyncio.to_thread(connect, gpu.attach_control))
    with await waiting as sock:
        gpu.client_control.unlink()
        turns.let_nobody_in()
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(sock.recv, 64)
    with pytest.raises(ConnectionRefusedError):
        connect(gpu.attach_control)


async def test_a_kept_socket_whose_name_another_has_is_not_used(gpu: GpuDir, daemon: FakeDaemon) -> None:
    broker = await started(gpu)
    await until_kept(gpu)
    await killed(broker)
    gpu.attach_control.unlink()
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        assert await asyncio.to_thread(attach, gpu.attach_control)


def bound(path: Path, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    return sock


def wrong_sockets(gpu: GpuDir) -> Iterator[tuple[str, Sequence[int]]]:
    silent, stream, other = bound(gpu.attach_new), bound(gpu.attach / "s", socket.SOCK_STREAM), bound(gpu.attach / "o")
    for sock in (stream, other):
        sock.listen()
    with silent, stream, other, Path("/dev/null").open() as file:
        yield "it does not listen", [silent.fileno()]
        yield "it is no Unix socket of packets", [stream.fileno()]
        yield "it has another name", [other.fileno()]
        yield "it is no socket", [file.fileno()]


def test_the_supervisor_keeps_nothing_but_a_brokers_listening_socket(gpu: GpuDir, daemon: FakeDaemon) -> None:
    def ask(descriptors: Sequence[int]) -> ListenerAnswer:
        with connect(gpu.turns) as sock:
            socket.send_fds(sock, [encode(ListenerRequest(action=ListenerAction.KEEP, inode=1))], descriptors)
            return decode(sock.recv(1024), ListenerAnswer)

    for why, descriptors in wrong_sockets(gpu):
        assert ask(descriptors).refused.startswith(why)
    gpu.attach_new.unlink()
    with bound(gpu.attach_new) as right:
        right.listen()
        assert ask([right.fileno()]).refused == ""
        gpu.client_control.unlink()
        assert ask([right.fileno()]).refused == "no client is let in"
