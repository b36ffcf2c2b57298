"""A broker that is killed leaves its listening socket to the supervisor, so that nobody finds no listener meanwhile."""

import asyncio
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpushare.mps.attach_protocol import FAREWELL
from gpushare.mps.broker import kept_sockets
from gpushare.mps.broker.connections import MAX_OF_POD
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.kept_sockets import opened_to_all
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import GpuGrants, GrantedContainer, SocketsAction, SocketsAnswer, SocketsRequest, decode, encode
from tests.unit.mps.broker.fake_daemon import (
    ATTACH,
    CLIENT_SOCKET,
    CREDENTIALS,
    GREETING,
    HELLO,
    SERVER,
    Commands,
    FakeDaemon,
    attach,
    client_socket,
    connect,
)
from tests.unit.mps.broker.serving.scene import (
    CEILING,
    GRANT,
    ME,
    MINE,
    OTHER_POD,
    POD,
    SHARE,
    Processes,
    grants,
    pod,
    serving,
    socket_of,
    state,
    until,
)

KILLS = 5
CROWDS = (OTHER_POD, "33333333-3333-3333-3333-333333333333")
BROKER = f"""
import asyncio, sys
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.clock import boot_clock
from gpushare.process.procfs import Owner
def owners(pid):
    *_, last, _ = Path(f"/proc/{{pid}}/cmdline").read_bytes().decode().split("\\0")
    return (Owner(last, ""),) if last in {CROWDS} else ({ME},)
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("{SHARE}", boot_clock, owners)))
"""
"""A process whose last argument is one of CROWDS is of that pod, each other one of container `app`."""
CROWD = f"""
import sys
from pathlib import Path
from tests.unit.mps.broker.serving.test_restarts import asked
held = [asked(Path(sys.argv[1])) for _ in range({MAX_OF_POD})]
print(flush=True)
sys.stdin.read()
"""
"""As many connections as a pod may hold, and each has asked to attach."""


async def started(gpu: GpuDir) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", BROKER, str(gpu.path.parent))


async def is_kept(gpu: GpuDir) -> bool:
    with closing(await kept_sockets.take(gpu)) as kept:
        return kept.inode == gpu.attach_control.stat().st_ino


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


async def test_a_client_whose_broker_ends_as_it_asks_for_a_socket_gets_in(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    """The daemon gives the socket after that: nobody would hold it, and the server would wait for ever."""
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    daemon.gives_sockets.clear()
    waiting = asyncio.create_task(processes.start(gpu.attach_control).attach())
    await until(lambda: daemon.attaches)
    await killed(broker)
    daemon.gives_sockets.set()
    await until(lambda: daemon.passed)
    assert daemon.hung
    broker = await started(gpu)
    assert await waiting == "in"
    assert not daemon.hung
    await killed(broker)


async def test_a_client_whose_broker_ends_once_it_has_its_socket_gets_in(gpu: GpuDir, daemon: FakeDaemon) -> None:
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    server = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert server is not None
    await killed(broker)
    broker = await started(gpu)
    with server:
        server.send(CREDENTIALS)
        assert await asyncio.to_thread(server.recv, 64) == HELLO
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO, "the next one"
    await killed(broker)


async def test_a_client_that_ends_with_its_broker_in_mid_attach_hangs_nobody(gpu: GpuDir, daemon: FakeDaemon) -> None:
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    server = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert server is not None
    await killed(broker)
    server.close()
    broker = await started(gpu)
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    await killed(broker)


def heard(path: Path) -> socket.socket:
    """The connection of a client that was greeted, and of which a broker has read the first message."""
    sock = connect(path)
    assert sock.recv(64) == GREETING
    sock.send(CREDENTIALS)
    while struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.01)
    return sock


def asked(path: Path) -> socket.socket:
    """The connection of a client that has asked to attach."""
    sock = heard(path)
    sock.send(ATTACH)
    return sock


def gets_in(sock: socket.socket) -> bool:
    """Whether a client that has asked attaches."""
    with sock:
        message, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
        if message != CLIENT_SOCKET:
            return False
        sock.send(FAREWELL)
        with socket.socket(fileno=descriptors[0]) as server:
            server.send(CREDENTIALS)
            return server.recv(64) == HELLO and not sock.recv(64)


async def has_queued(gpu: GpuDir) -> bool:
    """Whether the broker's queue, which outlives it, has something."""
    with closing(await kept_sockets.take(gpu)) as kept:
        return bool(select.select([kept.under_way.ends[1]], [], [], 0)[0])


@pytest.mark.parametrize("said", [(), (CREDENTIALS,)])
async def test_whoever_was_greeted_and_has_not_asked_goes_on_at_the_next_broker(
    gpu: GpuDir, daemon: FakeDaemon, said: Sequence[bytes]
) -> None:
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    await until_kept(gpu)
    with closing(await asyncio.to_thread(heard if said else connect, gpu.attach_control)) as client:
        if not said:
            assert await asyncio.to_thread(client.recv, 64) == GREETING
        async with asyncio.timeout(10):
            while not await has_queued(gpu):  # noqa: ASYNC110 - another process puts it there
                await asyncio.sleep(0.01)
        await killed(broker)
        broker = await started(gpu)
        await until(lambda: state(gpu).listening)
        for message in (CREDENTIALS, ATTACH)[len(said) :]:
            client.send(message)
        assert await asyncio.to_thread(gets_in, client)
    assert state(gpu).refused == 0
    await killed(broker)


async def test_whoever_waits_for_a_grant_goes_on_waiting_at_the_next_broker(gpu: GpuDir, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants(MINE, closed="NotReady: later"))
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    clients = [await asyncio.to_thread(asked, gpu.attach_control) for _ in range(3)]
    for _ in range(2):
        await asyncio.sleep(0.1)
        await killed(broker)
        broker = await started(gpu)
        await until(lambda: state(gpu).listening)
    assert not any(select.select([client], [], [], 0)[0] for client in clients), "hung up on"
    write_model(gpu.grants, grants(MINE))
    for client in clients:
        assert await asyncio.to_thread(gets_in, client)
    await until(lambda: not daemon.hung)
    await killed(broker)


def with_crowds(closed: str = "") -> GpuGrants:
    starting = [GrantedContainer(name=name, grant=GRANT) for name in ("one", "two")]
    return grants(MINE, *(pod(uid, *starting) for uid in CROWDS), closed=closed)


@pytest.fixture
async def crowded(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[asyncio.subprocess.Process]:
    """A broker at which two pods with a part wait by all the connections that they may hold, for as long as they like:
    which of its containers is which is not shown yet of a pod of several.
    """
    write_model(gpu.grants, with_crowds())
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    command = [sys.executable, "-c", CROWD, str(gpu.attach_control)]
    pipe = asyncio.subprocess.PIPE
    crowds = [await asyncio.create_subprocess_exec(*command, uid, stdin=pipe, stdout=pipe) for uid in CROWDS]
    for crowd in crowds:
        assert crowd.stdout is not None
        assert await crowd.stdout.readline() == b"\n", "the attack was not carried out"
    yield broker
    for crowd in crowds:
        crowd.kill()
        await crowd.wait()


async def test_a_crowd_that_waits_keeps_nobody_from_waiting_at_the_next_broker(
    gpu: GpuDir, crowded: asyncio.subprocess.Process
) -> None:
    write_model(gpu.grants, with_crowds(closed="NotReady: later"))
    client = await asyncio.to_thread(asked, gpu.attach_control)
    await asyncio.sleep(0.1)
    await killed(crowded)
    broker = await started(gpu)
    await until(lambda: state(gpu).listening)
    with client:
        assert not select.select([client], [], [], 1)[0], "hung up on"
    await killed(broker)


async def test_a_crowd_that_waits_lets_no_broker_that_is_killed_hang_the_server(
    gpu: GpuDir, daemon: FakeDaemon, crowded: asyncio.subprocess.Process
) -> None:
    server = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert server is not None
    await killed(crowded)
    server.close()
    broker = await started(gpu)
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    assert not daemon.hung
    await killed(broker)


async def test_brokers_killed_at_any_moment_hang_no_server(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    """Who is refused had just been greeted."""
    many = grants(pod(POD, GrantedContainer(name="app", id=ME.container_id, grant=replace(GRANT, processes=8))))
    write_model(gpu.grants, many)
    broker = await started(gpu)
    await until(gpu.attach_control.exists)
    told: list[str] = []
    ending = asyncio.Event()

    async def attaches() -> None:
        process = processes.start(gpu.attach_control)
        while not ending.is_set():
            told.append(await process.attach())

    clients = [asyncio.create_task(attaches()) for _ in range(3)]
    for number in range(KILLS):
        came = len(told)
        await until(lambda came=came: len(told) > came + 3)
        await asyncio.sleep(number * 0.001)
        await killed(broker)
        broker = await started(gpu)
    ending.set()
    async with asyncio.timeout(50):
        await asyncio.gather(*clients)
    assert not daemon.hung
    assert told.count("refused") < KILLS, "in half a millisecond of the few that an attach takes"
    assert set(told) <= {"in", "refused"}
    await killed(broker)


async def test_a_lease_on_the_board_keeps_nobody_from_attaching(gpu: GpuDir, daemon: FakeDaemon) -> None:
    """As whoever becomes the user of its file can have one, while no broker has it open."""
    gpu.board.touch()
    with gpu.board.open("rb") as board:
        fcntl.fcntl(board, fcntl.F_SETSIG, signal.SIGURG)  # which does nothing
        fcntl.fcntl(board, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        broker = await started(gpu)
        await until(gpu.attach_control.exists)
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        await until(lambda: state(gpu).attached)
        assert gpu.board.stat().st_size == 0, "the attack was not carried out"
    await until(lambda: gpu.board.stat().st_size)
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
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    queue = [end.fileno() for end in ends]
    with silent, stream, other, ends[0], ends[1], Path("/dev/null").open() as file:
        yield "it does not listen", [silent.fileno(), *queue]
        yield "it is no Unix socket of packets", [stream.fileno(), *queue]
        yield "it has another name", [other.fileno(), *queue]
        yield "it is no socket", [file.fileno(), *queue]
        yield "its queue is none", [other.fileno(), other.fileno(), queue[0]]
        yield "it is not a listening socket with the two ends of a queue", [other.fileno()]


def test_the_supervisor_keeps_nothing_but_a_brokers_sockets(gpu: GpuDir, daemon: FakeDaemon) -> None:
    def ask(descriptors: Sequence[int]) -> SocketsAnswer:
        with connect(gpu.turns) as sock:
            socket.send_fds(sock, [encode(SocketsRequest(action=SocketsAction.KEEP, inode=1))], descriptors)
            return decode(sock.recv(1024), SocketsAnswer)

    for why, descriptors in wrong_sockets(gpu):
        assert ask(descriptors).refused.startswith(why)
    gpu.attach_new.unlink()
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with bound(gpu.attach_new) as right, ends[0], ends[1]:
        right.listen()
        sockets = [right.fileno(), *(end.fileno() for end in ends)]
        assert ask(sockets).refused == ""
        gpu.client_control.unlink()
        assert ask(sockets).refused == "no client is let in"


@pytest.mark.parametrize("other", ["a link", "a file", "a socket with two names"])
def test_the_mode_of_no_other_file_is_changed_for_a_socket(tmp_path: Path, other: str) -> None:
    target, path = tmp_path / "target", tmp_path / "new"
    if other == "a socket with two names":
        bound(target).close()
        path.hardlink_to(target)
    else:
        target.touch()
        path.symlink_to(target) if other == "a link" else path.touch()
    before = target.stat().st_mode, path.stat().st_mode
    with pytest.raises(OSError, match="new"):
        opened_to_all(path)
    assert (target.stat().st_mode, path.stat().st_mode) == before
