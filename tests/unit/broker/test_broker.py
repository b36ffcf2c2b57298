"""The broker against a daemon that speaks the measured protocol, over real sockets, with the supervisor's own turns."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from gpushare.broker.attach import ATTACH_SECONDS
from gpushare.broker.broker import MAX_CONNECTIONS_PER_CONTAINER, RETRY_SECONDS, SCAN_SECONDS, Broker, serve
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import (
    BrokerState,
    ClientGrant,
    DaemonLimits,
    GpuGrants,
    GrantedContainer,
    GrantedPod,
    RefusedAttach,
)
from gpushare.procfs import TICKS_PER_SECOND, Owner
from tests.unit.broker.fake_daemon import (
    ATTACH,
    COMMAND,
    CREDENTIALS,
    GREETING,
    HELLO,
    SERVER,
    Commands,
    FakeDaemon,
    attach,
    client_socket,
    connect,
    open_descriptors,
)
from tests.unit.few_files import descriptors, no_descriptors

SHARE = "inference"
CEILING = DaemonLimits(threads=50, memory_mib=8192, priority=0)
POD, OTHER_POD = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
ME = Owner(POD, "a" * 64)
GRANT = ClientGrant(threads=10, memory_mib=2048, processes=2)


def grants(*pods: GrantedPod, closed: str = "") -> GpuGrants:
    return GpuGrants(uuid="GPU-0", share=SHARE, closed=closed, pods=list(pods))


def pod(uid: str, *containers: GrantedContainer) -> GrantedPod:
    return GrantedPod(uid=uid, namespace="ml", name="train", containers=list(containers))


MINE = pod(POD, GrantedContainer(name="app", id=ME.container_id, grant=GRANT))


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    gpu = GpuDir(tmp_path / "GPU-0")
    for directory in (gpu.client, gpu.attach, gpu.broker):
        directory.mkdir(parents=True)
    gpu.client_share.write_text(SHARE)
    write_model(gpu.grants, grants(MINE))
    return gpu


@pytest.fixture
def daemon(gpu: GpuDir) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(gpu.client_control)
    yield daemon
    daemon.close()


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture(autouse=True)
def turns(gpu: GpuDir, commands: Commands) -> Iterator[TurnServer]:
    server = TurnServer(gpu, commands, lambda: Terms(SERVER, CEILING), threading.Lock(), os.geteuid())
    server.start()
    yield server
    server.end()


@pytest.fixture
async def broker(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[None]:
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        yield


def mine(_: int) -> Sequence[Owner]:
    """This test's own processes are of container `app`."""
    return (ME,)


@asynccontextmanager
async def serving(
    gpu: GpuDir,
    share: str = SHARE,
    owners: Callable[[int], Sequence[Owner] | None] = mine,
    clock: Callable[[], float] = lambda: 7.0,
) -> AsyncIterator[None]:
    """The broker of the MPS pod of `share`, as its process runs it."""
    running = asyncio.create_task(serve(gpu.path.parent, share, clock, owners))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - threads and the file system change what it looks at
            await asyncio.sleep(0.01)


def refusals(gpu: GpuDir) -> list[tuple[RefusedAttach, str, int]]:
    found = read_model(gpu.broker_state, BrokerState).value
    return [(one.reason, one.container, one.count) for one in found.refusals] if found else []


def socket_of(gpu: GpuDir) -> tuple[int, int]:
    """Which socket has the name; a file system may give an inode's number to the next one."""
    found = gpu.attach_control.stat()
    return found.st_ino, found.st_ctime_ns


def state(gpu: GpuDir) -> BrokerState:
    found = read_model(gpu.broker_state, BrokerState).value
    assert found is not None
    return found


async def test_a_client_gets_its_socket_to_the_server(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    await until(lambda: [CREDENTIALS, ATTACH, b"\0\0\0\0"] in daemon.heard)
    await until(lambda: state(gpu).attached == 1)
    assert [(one.pid, one.pod_uid, one.container) for one in state(gpu).arrivals] == [(os.getpid(), POD, "app")]


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
    await until(lambda: [reason for reason, _, _ in refusals(gpu)] == [RefusedAttach.COMMAND])


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
    before = open_descriptors()

    def smuggle() -> bytes:
        with connect(gpu.attach_control) as sock, open("/dev/null") as file:  # noqa: PTH123
            sock.recv(64)
            socket.send_fds(sock, [CREDENTIALS], [file.fileno()])
            return sock.recv(64)

    assert await asyncio.to_thread(smuggle) == b""
    await until(lambda: open_descriptors() <= before)


async def test_whoever_only_looks_costs_the_daemon_nothing(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    before = len(daemon.heard)

    def look() -> bytes:
        with connect(gpu.attach_control) as sock:
            return sock.recv(64)

    assert await asyncio.to_thread(look) == GREETING
    assert len(daemon.heard) == before


async def test_a_client_is_greeted_before_anybody_looks_who_it_is(gpu: GpuDir, daemon: FakeDaemon) -> None:
    """It goes on meanwhile, so the look costs it no time."""
    seen: list[bytes] = []

    def owners(_: int) -> Sequence[Owner]:
        seen.append(client.recv(64))
        return (ME,)

    async with serving(gpu, owners=owners):
        await until(gpu.attach_control.exists)
        with connect(gpu.attach_control) as client:
            await until(lambda: seen)
    assert seen == [GREETING]


async def test_one_container_cannot_keep_others_from_attaching_and_all_are_greeted(
    gpu: GpuDir, daemon: FakeDaemon
) -> None:
    owner = [Owner(OTHER_POD, "b" * 64)]
    async with serving(gpu, owners=lambda _: owner):
        await until(gpu.attach_control.exists)
        held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(MAX_CONNECTIONS_PER_CONTAINER)]
        for sock in held:
            assert await asyncio.to_thread(sock.recv, 64) == GREETING
        with await asyncio.to_thread(connect, gpu.attach_control) as one_more:
            assert await asyncio.to_thread(one_more.recv, 64) == GREETING, "or CUDA would run without MPS"
            assert await asyncio.to_thread(one_more.recv, 64) == b""
        owner[:] = [ME]
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        for sock in held:
            sock.close()


async def test_the_socket_is_there_exactly_while_the_supervisor_lets_clients_in(gpu: GpuDir, broker: None) -> None:
    gpu.client_control.unlink()
    await until(lambda: not gpu.attach_control.exists())
    FakeDaemon(gpu.client_control)
    await until(gpu.attach_control.exists)
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO


async def test_a_broker_that_starts_again_takes_over_and_the_name_stays(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        before = socket_of(gpu)
    assert gpu.attach_control.exists()
    async with serving(gpu):
        await until(lambda: socket_of(gpu) != before)
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO


async def test_a_gpu_that_goes_to_another_share_is_left_to_that_shares_broker(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu, SHARE), serving(gpu, "other"):
        await until(gpu.attach_control.exists)
        before = socket_of(gpu)
        gpu.client_share.write_text("other")
        write_model(gpu.grants, structs.replace(grants(MINE), share="other"))
        await until(lambda: gpu.attach_control.exists() and socket_of(gpu) != before)
        await asyncio.sleep(2 * SCAN_SECONDS)
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO


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
    write_model(silent.grants, grants(MINE))
    silent.client_share.write_text(SHARE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wedged:
        wedged.bind(str(silent.client_control))
        wedged.listen(1)
        async with serving(gpu):
            await until(gpu.attach_control.exists)
            assert read_model(silent.broker_state, BrokerState).absent, "it is still being asked"
            assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
            await until(lambda: read_model(silent.broker_state, BrokerState).value is not None)
    assert "TimeoutError" in state(silent).problem
    assert not silent.attach_control.exists()


# Who may attach


async def test_a_process_of_no_pod_is_refused_at_once(gpu: GpuDir, daemon: FakeDaemon) -> None:
    async with serving(gpu, owners=lambda _: ()):
        await until(gpu.attach_control.exists)
        assert await asyncio.to_thread(attach, gpu.attach_control) == b""
        assert daemon.attaches == 0
        await until(lambda: refusals(gpu) == [(RefusedAttach.NO_GRANT, "", 1)])


async def test_a_container_beside_the_one_with_the_slot_is_refused(gpu: GpuDir, daemon: FakeDaemon) -> None:
    helper = GrantedContainer(name="helper", id="c" * 64)
    write_model(gpu.grants, grants(pod(POD, *MINE.containers, helper)))
    async with serving(gpu, owners=lambda _: (Owner(POD, "c" * 64),)):
        await until(gpu.attach_control.exists)
        assert await asyncio.to_thread(attach, gpu.attach_control) == b""
        assert daemon.attaches == 0
        await until(lambda: refusals(gpu) == [(RefusedAttach.NO_GRANT, "helper", 1)])


async def test_a_process_waits_until_the_agent_names_its_pod(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants())
    waiting = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
    await asyncio.sleep(0.3)
    assert (waiting.done(), daemon.attaches) == (False, 0)
    write_model(gpu.grants, grants(MINE))
    assert await waiting == HELLO


async def test_a_process_waits_while_its_gpu_takes_no_client(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants(MINE, closed="LimitsNotInForce"))
    waiting = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
    await asyncio.sleep(0.3)
    assert (waiting.done(), daemon.attaches) == (False, 0)
    write_model(gpu.grants, grants(MINE))
    assert await waiting == HELLO


async def test_one_process_more_than_granted_is_refused_until_another_has_ended(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    first, second, third = (processes.start(gpu.attach_control) for _ in range(3))
    assert [await first.attach(), await second.attach(), await third.attach()] == ["in", "in", "refused"]
    assert await first.attach() == "in", "one more context of a process that has attached"
    await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_PROCESSES, "app", 1)])
    await first.end()
    assert await third.attach() == "in"


async def test_a_broker_that_starts_again_counts_the_clients_that_run(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    running = [processes.start(gpu.attach_control) for _ in range(GRANT.processes)]
    daemon.clients = [one.pid for one in running]
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        assert await processes.start(gpu.attach_control).attach() == "refused"
        assert await running[0].attach() == "in"


CONNECTS = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=int(sys.argv[1]))
sock.connect(sys.argv[2])
sys.stdin.readline()
"""


def connected_by_another(path: Path) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """A connection, and the process that made it, which ends with its standard input."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    command = [sys.executable, "-c", CONNECTS, str(sock.fileno()), str(path)]
    return sock, subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[sock.fileno()])


async def test_a_connection_whose_maker_has_ended_lets_nobody_in(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    """Its process would count no more, so that any number of others could come by such connections."""
    sock, maker = connected_by_another(gpu.attach_control)
    with sock:
        await until(lambda: has_connected(sock))
        assert await asyncio.to_thread(sock.recv, 64) == GREETING
        await asyncio.to_thread(maker.communicate)
        sock.send(CREDENTIALS)
        sock.send(ATTACH)
        assert await asyncio.to_thread(sock.recv, 64) == b""
    assert daemon.attaches == 0
    await until(lambda: refusals(gpu) == [(RefusedAttach.PROTOCOL, "app", 1)])


async def test_a_maker_that_has_ended_before_it_was_accepted_is_nobody(
    gpu: GpuDir, broker: None, daemon: FakeDaemon
) -> None:
    """Its PID may be that of another container's process by then."""
    sock, maker = connected_by_another(gpu.attach_control)
    with sock:
        maker.communicate()  # while the broker, in this very thread, cannot accept
        assert await asyncio.to_thread(sock.recv, 64) == GREETING
        sock.send(CREDENTIALS)
        sock.send(ATTACH)
        assert await asyncio.to_thread(sock.recv, 64) == b""
    assert daemon.attaches == 0
    await until(lambda: refusals(gpu) == [(RefusedAttach.NO_GRANT, "", 1)])


def has_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


async def test_a_process_that_attaches_for_others_gets_no_more_of_them_in_than_granted(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    """It hands its connections to others. The server lists those who speak on them."""
    others = [processes.start(gpu.attach_control).pid for _ in range(2)]
    for _ in range(2):
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    daemon.clients = [os.getpid(), others[0]]
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO, "one more context"
    daemon.clients = others
    assert await asyncio.to_thread(attach, gpu.attach_control) == b""
    await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_PROCESSES, "app", 1)])


async def test_a_broker_that_starts_on_a_closed_gpu_counts_the_clients_that_run(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    daemon.clients = [processes.start(gpu.attach_control).pid for _ in range(2)]
    write_model(gpu.grants, grants(MINE, closed="LimitsNotInForce"))
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        write_model(gpu.grants, grants(MINE))
        assert await asyncio.to_thread(attach, gpu.attach_control) == b""
        await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_PROCESSES, "app", 1)])


async def test_the_next_broker_says_when_a_running_client_arrived(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    async with serving(gpu, clock=boot_clock):
        await until(gpu.attach_control.exists)
        client = processes.start(gpu.attach_control)
        assert await client.attach() == "in"
        await until(lambda: state(gpu).attached == 1)
        before = state(gpu).arrivals
    daemon.clients = [client.pid]
    async with serving(gpu, clock=boot_clock):
        await until(lambda: (state(gpu).attached, state(gpu).arrivals) == (0, before))


SERVES = f"""
import asyncio, resource, sys
from pathlib import Path
from gpushare.broker.broker import serve
from gpushare.mps.clock import boot_clock
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
asyncio.run(serve(Path(sys.argv[1]), "{SHARE}", boot_clock, lambda pid: ()))
"""


@pytest.fixture
async def poor_broker(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[asyncio.subprocess.Process]:
    """With 32 descriptors."""
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVES, str(gpu.path.parent))
    await until(gpu.attach_control.exists)
    yield running
    if running.returncode is None:
        running.kill()
    await running.wait()


async def test_a_broker_without_descriptors_goes_on_listening_and_waits_for_some_without_work(
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
        with descriptors(left=1):
            attaching = asyncio.create_task(client.attach())
            await asyncio.sleep(1.5)
            assert not attaching.done()
        assert await attaching == "in"
        assert refusals(gpu) == []


async def test_a_daemon_that_hangs_up_is_asked_again_and_the_client_is_not_blamed(
    gpu: GpuDir, broker: None, daemon: FakeDaemon
) -> None:
    daemon.hangs_up_at_attaches = 2
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    assert (daemon.attaches, refusals(gpu)) == (3, [])


# Turns


async def test_a_client_attaches_while_the_server_has_its_grants_limits(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, commands: Commands
) -> None:
    server = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert server is not None
    assert commands.sent == [
        f"set_active_thread_percentage {SERVER} 10",
        f"set_device_pinned_mem_limit {SERVER} 0 2048M",
    ]
    with server:
        await asyncio.to_thread(server.send, CREDENTIALS)
        await until(lambda: len(commands.sent) == 4)
    assert commands.sent[2:] == [
        f"set_active_thread_percentage {SERVER} 50",
        f"set_device_pinned_mem_limit {SERVER} 0 8192M",
    ]


async def test_a_grant_above_the_shares_limits_is_cut_to_them(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, commands: Commands
) -> None:
    wide = ClientGrant(threads=100, memory_mib=80000, processes=1)
    write_model(gpu.grants, grants(pod(POD, GrantedContainer(name="app", id=ME.container_id, grant=wide))))
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    assert commands.sent == []


async def test_a_peer_that_is_silent_holds_the_others_up_for_two_seconds_and_is_told(
    gpu: GpuDir, daemon: FakeDaemon
) -> None:
    owner = [Owner(OTHER_POD, "b" * 64)]
    write_model(gpu.grants, grants(MINE, pod(OTHER_POD, GrantedContainer(name="stuck", grant=GRANT))))
    async with serving(gpu, owners=lambda _: tuple(owner)):
        await until(gpu.attach_control.exists)
        stuck = await asyncio.to_thread(client_socket, gpu.attach_control)
        assert stuck is not None
        owner[:] = [ME]
        began = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        assert asyncio.get_running_loop().time() - began < ATTACH_SECONDS + 2
        await until(lambda: refusals(gpu) == [(RefusedAttach.STALLED, "stuck", 1)])
        owner[:] = [Owner(OTHER_POD, "b" * 64)]
        before = daemon.attaches
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(attach, gpu.attach_control, 1.0)
        assert daemon.attaches == before, "it may not do so again at once"
        stuck.close()


async def test_a_peer_that_closes_its_socket_hangs_nobody(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    gone = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert gone is not None
    gone.close()
    await until(lambda: not daemon.hung)


async def test_a_peer_that_hangs_the_server_is_named(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    culprit = await asyncio.to_thread(client_socket, gpu.attach_control)
    assert culprit is not None
    with culprit:
        culprit.shutdown(socket.SHUT_RDWR)
        await until(lambda: refusals(gpu) == [(RefusedAttach.SERVER_HUNG, "app", 1)])
    assert daemon.hung


async def test_without_a_turn_a_process_waits(gpu: GpuDir, daemon: FakeDaemon, turns: TurnServer) -> None:
    gpu.turns.unlink()
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        waiting = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
        await asyncio.sleep(0.3)
        assert (waiting.done(), daemon.attaches) == (False, 0)
        again = TurnServer(gpu, Commands(), lambda: Terms(SERVER, CEILING), threading.Lock(), os.geteuid())
        again.start()
        assert await waiting == HELLO
        again.end()


CLIENT = """
import sys
from pathlib import Path
from tests.unit.broker.fake_daemon import attach
for _ in sys.stdin:
    print("in" if attach(Path(sys.argv[1])) else "refused", flush=True)
"""


class Process:
    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    async def attach(self) -> str:
        return await asyncio.to_thread(self._attach)

    def _attach(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait, 10)


class Processes:
    """Processes that attach when they are told, and end with the test."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(self, path: Path) -> Process:
        self._started.append(Process(path))
        return self._started[-1]

    async def end(self) -> None:
        for one in self._started:
            await one.end()


@pytest.fixture
async def processes() -> AsyncIterator[Processes]:
    started = Processes()
    yield started
    await started.end()
