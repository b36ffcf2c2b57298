"""Whom the broker lets in, refuses and keeps waiting, and how many of a container."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpushare.mps import packets
from gpushare.mps.broker.letting_in import RETRY_SECONDS
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.terminations import TerminationFile, TerminationRecord
from gpushare.mps.wire import (
    GpuGrants,
    GrantedContainer,
    RefusedAttach,
)
from gpushare.process.procfs import Owner, read_start_time
from tests.unit.mps.broker.fake_daemon import (
    ATTACH,
    CREDENTIALS,
    GREETING,
    HELLO,
    FakeDaemon,
    attach,
)
from tests.unit.mps.broker.serving.scene import (
    GRANT,
    ME,
    MINE,
    POD,
    Processes,
    grants,
    pod,
    refusals,
    serving,
    state,
    until,
)


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


BESIDE = GrantedContainer(name="helper")
STARTING = pod(POD, GrantedContainer(name="app", grant=GRANT), BESIDE)
"""The pod's status shows no id of any container yet."""


@pytest.mark.parametrize("first", [grants(), grants(STARTING)], ids=["its pod is not known yet", "its pod is known"])
async def test_a_process_of_a_starting_pod_gets_in_by_its_containers_mount(
    gpu: GpuDir, daemon: FakeDaemon, first: GpuGrants
) -> None:
    write_model(gpu.grants, first)
    async with serving(gpu, read_container=lambda pid, uid: "app" if (pid, uid) == (os.getpid(), POD) else ""):
        await until(gpu.attach_control.exists)
        asking = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
        await asyncio.sleep(2 * RETRY_SECONDS)
        write_model(gpu.grants, grants(STARTING))
        assert await asking == HELLO
        assert state(gpu).refusals == []


async def test_a_process_beside_the_slot_is_refused_by_its_containers_mount(gpu: GpuDir, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants(STARTING))
    async with serving(gpu, read_container=lambda *_: "helper"):
        await until(gpu.attach_control.exists)
        assert await asyncio.to_thread(attach, gpu.attach_control) == b""
        await until(lambda: refusals(gpu) == [(RefusedAttach.NO_GRANT, "helper", 1)])


async def test_a_process_whose_mounts_tell_nothing_waits_for_the_pods_status(gpu: GpuDir, daemon: FakeDaemon) -> None:
    write_model(gpu.grants, grants(STARTING))
    reads: list[int] = []
    async with serving(gpu, read_container=lambda pid, _: str(reads.append(pid) or "")):
        await until(gpu.attach_control.exists)
        waiting = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
        await asyncio.sleep(5 * RETRY_SECONDS)
        assert (waiting.done(), daemon.attaches) == (False, 0)
        assert len(reads) <= 2, "the mounts of a process that waits are not read for ever"
        write_model(gpu.grants, grants(pod(POD, *MINE.containers, BESIDE)))
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


def note_termination(gpu: GpuDir, pid: int, server: int, reused: str = "") -> None:
    """Notes a termination as the agent does before it asks the daemon. `reused`: whose PID was another process'
    then."""
    started = {"client": read_start_time(pid), "server": read_start_time(server)}
    if reused:
        started[reused] = 1
    record = TerminationRecord(pid=pid, started=started["client"] or 0, server=server, server_started=started["server"])
    write_model(gpu.endings, TerminationFile(asked=[record]))


async def test_an_ended_process_attaches_no_more_to_its_server(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    ended, other, server = (processes.start(gpu.attach_control) for _ in range(3))
    assert await ended.attach() == "in"
    note_termination(gpu, ended.pid, server.pid)
    assert [await ended.attach(), await other.attach()] == ["refused", "in"]
    await until(lambda: refusals(gpu) == [(RefusedAttach.ENDED, "app", 1)])
    await server.end()
    assert await ended.attach() == "in", "a client of another server is a new client"


async def test_a_process_ended_during_its_attach_is_refused(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    """The daemon is asked for its clients, and meanwhile for the end of this one."""
    process, server = (processes.start(gpu.attach_control) for _ in range(2))
    assert [await process.attach() for _ in range(2)] == ["in"] * 2
    daemon.before_answering = lambda _: note_termination(gpu, process.pid, server.pid)
    assert await process.attach() == "refused"
    await until(lambda: refusals(gpu) == [(RefusedAttach.ENDED, "app", 1)])


async def test_a_note_that_is_withdrawn_at_once_refuses_nobody(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    process, server = (processes.start(gpu.attach_control) for _ in range(2))
    note_termination(gpu, process.pid, server.pid)
    attaching = asyncio.create_task(process.attach())
    await asyncio.sleep(RETRY_SECONDS / 2)
    gpu.endings.unlink()
    assert await attaching == "in"


@pytest.mark.parametrize("reused", ["client", "server"])
async def test_a_note_of_earlier_processes_with_these_pids_refuses_nobody(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes", reused: str
) -> None:
    process, server = (processes.start(gpu.attach_control) for _ in range(2))
    note_termination(gpu, process.pid, server.pid, reused)
    assert await process.attach() == "in"


async def test_a_file_that_cannot_be_read_keeps_nobody_out_and_is_told(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes", caplog: pytest.LogCaptureFixture
) -> None:
    gpu.endings.write_text("{torn")
    assert await processes.start(gpu.attach_control).attach() == "in"
    assert "whose contexts were ended is not known" in caplog.text


async def test_a_broker_that_starts_again_counts_the_clients_that_run(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    running = [processes.start(gpu.attach_control) for _ in range(GRANT.processes)]
    daemon.clients = [client.pid for client in running]
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


OPTIONS = (packets.SO_PEERPIDFD, 30_000)
"""The option that gives a pidfd of the peer, and one that no kernel knows, as none before 6.5 knows the first."""
kernels = pytest.mark.parametrize("option", OPTIONS, ids=["Linux 6.5", "before"])


@kernels
async def test_a_connection_whose_maker_has_ended_lets_nobody_in(gpu: GpuDir, daemon: FakeDaemon, option: int) -> None:
    """Its process would count no more, so that any number of others could come by such connections."""
    async with serving(gpu, peer_option=option):
        await until(gpu.attach_control.exists)
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


@kernels
async def test_a_maker_that_has_ended_before_it_was_accepted_is_nobody(
    gpu: GpuDir, daemon: FakeDaemon, option: int
) -> None:
    """Its PID may be that of another container's process by then."""
    async with serving(gpu, peer_option=option):
        await until(gpu.attach_control.exists)
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


async def let_in_by(gpu: GpuDir) -> socket.socket | None:
    """What a process gets that another one lets in, which connects and ends; None: it is refused."""
    sock, maker = connected_by_another(gpu.attach_control)
    with sock:
        await until(lambda: has_connected(sock))
        passed = await asyncio.to_thread(speak, sock)
    await asyncio.to_thread(maker.communicate)
    return passed


def speak(sock: socket.socket) -> socket.socket | None:
    assert sock.recv(64) == GREETING
    sock.send(CREDENTIALS)
    sock.send(ATTACH)
    message, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
    if not message:
        return None
    sock.send(bytes(4))
    passed = socket.socket(fileno=descriptors[0])
    passed.send(CREDENTIALS)
    assert passed.recv(64) == HELLO
    return passed


@kernels
async def test_of_twelve_whom_helpers_let_in_two_get_in_where_two_may(
    gpu: GpuDir, daemon: FakeDaemon, option: int
) -> None:
    """Each helper connects, lives until that attach is done and ends. The server lists nobody yet."""
    async with serving(gpu, peer_option=option):
        await until(gpu.attach_control.exists)
        passed = [await let_in_by(gpu) for _ in range(12)]
        assert [sock is not None for sock in passed] == [True, True] + [False] * 10
        await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_PROCESSES, "app", 10)])
        first, second = passed[:2]
        assert first
        assert second
        first.close()
        third = await let_in_by(gpu)
        assert third is not None, "who was let in has hung up"
        for sock in (second, third):
            sock.close()


async def test_whom_the_server_lists_counts_also_if_it_never_attached(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    others = [processes.start(gpu.attach_control).pid for _ in range(2)]
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    daemon.clients = [os.getpid(), others[0]]
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO, "one more context"
    daemon.clients = others
    assert await asyncio.to_thread(attach, gpu.attach_control) == b""
    await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_PROCESSES, "app", 1)])


async def test_whom_the_server_lists_and_who_never_attached_is_told(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    async with serving(gpu, look_seconds=0.0):
        await until(gpu.attach_control.exists)
        attached, never = (processes.start(gpu.attach_control) for _ in range(2))
        assert await attached.attach() == "in"
        daemon.clients = [attached.pid, never.pid]
        await until(lambda: [client.pid for client in state(gpu).unattached] == [never.pid])
        [told] = state(gpu).unattached
        assert (told.pod_uid, told.container_id, told.started) == (POD, ME.container_id, read_start_time(never.pid))
        assert await never.attach() == "in", "it attaches after all"
        await until(lambda: state(gpu).unattached == [])


async def test_who_runs_when_a_broker_starts_is_taken_for_attached(
    gpu: GpuDir, daemon: FakeDaemon, processes: "Processes"
) -> None:
    """The broker before it may have let it in a moment ago: the server lists it a moment later."""
    async with serving(gpu):
        await until(gpu.broker_state.exists)
    async with serving(gpu, look_seconds=0.0):
        await until(lambda: state(gpu).listening)
        daemon.clients = [processes.start(gpu.attach_control).pid]
        asked = len(daemon.commands)
        await until(lambda: len(daemon.commands) > asked + 4)
        assert state(gpu).unattached == []


async def test_a_container_has_no_more_contexts_than_it_may(
    gpu: GpuDir, broker: None, daemon: FakeDaemon, processes: "Processes"
) -> None:
    grant = replace(GRANT, contexts=3)
    write_model(gpu.grants, grants(pod(POD, GrantedContainer(name="app", id=ME.container_id, grant=grant))))
    client = processes.start(gpu.attach_control)
    for _ in range(5):
        assert await client.attach() == "in", "each context was destroyed again"
    daemon.clients = [client.pid] * 2
    assert await client.attach() == "in"
    daemon.clients = [client.pid] * 3
    assert await client.attach() == "refused"
    await until(lambda: refusals(gpu) == [(RefusedAttach.TOO_MANY_CONTEXTS, "app", 1)])
    daemon.clients = [client.pid] * 2
    assert await client.attach() == "in"


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
