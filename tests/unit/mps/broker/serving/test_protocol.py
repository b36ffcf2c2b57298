"""What passes between a client and the daemon, and when there is a socket at all."""

import asyncio
import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec import structs

from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.broker.attach import read_request
from gpushare.mps.broker.broker import SCAN_SECONDS, Broker, BrokerSettings
from gpushare.mps.broker.connections import MAX_OF_POD_WITHOUT_PART
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import TurnServer
from gpushare.mps.wire import (
    BrokerState,
    RefusedAttach,
)
from gpushare.process.procfs import Owner
from tests.unit.mps.broker.fake_daemon import (
    ATTACH,
    COMMAND,
    CREDENTIALS,
    GREETING,
    HELLO,
    FakeDaemon,
    attach,
    connect,
    open_descriptors,
)
from tests.unit.mps.broker.serving.scene import (
    ME,
    MINE,
    OTHER_POD,
    POD,
    SHARE,
    grants,
    refusals,
    serving,
    socket_of,
    state,
    until,
)


async def test_a_client_gets_its_socket_to_the_server(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
    await until(lambda: [CREDENTIALS, ATTACH, b"\0\0\0\0"] in daemon.heard)
    await until(lambda: state(gpu).attached == 1)
    assert [(arrival.pid, arrival.pod_uid, arrival.container) for arrival in state(gpu).arrivals] == [
        (os.getpid(), POD, "app")
    ]


async def test_the_daemon_sees_the_brokers_credentials(gpu: GpuDir, broker: None, daemon: FakeDaemon) -> None:
    await asyncio.to_thread(attach, gpu.attach_control)
    assert set(daemon.uids) == {os.geteuid()}


@pytest.fixture
async def quiet_broker(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[None]:
    """One that has no commands of its own once clients attach."""
    async with serving(gpu, look_seconds=math.inf):
        await until(gpu.attach_control.exists)
        yield


async def test_no_command_reaches_the_daemon_not_even_its_request(
    gpu: GpuDir, quiet_broker: None, daemon: FakeDaemon
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
    gpu: GpuDir, quiet_broker: None, daemon: FakeDaemon, messages: tuple[bytes, ...]
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


async def test_whoever_only_looks_costs_the_daemon_nothing(gpu: GpuDir, quiet_broker: None, daemon: FakeDaemon) -> None:
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


async def test_a_pod_cannot_keep_others_from_attaching(gpu: GpuDir, daemon: FakeDaemon) -> None:
    owner = [Owner(OTHER_POD, "b" * 64)]
    async with serving(gpu, owners=lambda _: owner):
        await until(gpu.attach_control.exists)
        held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(MAX_OF_POD_WITHOUT_PART)]
        for sock in held:
            assert await asyncio.to_thread(sock.recv, 64) == GREETING
        with await asyncio.to_thread(connect, gpu.attach_control) as one_more:
            assert await asyncio.to_thread(one_more.recv, 64) == GREETING, "or CUDA would run without MPS"
            assert await asyncio.to_thread(one_more.recv, 64) == b""
        await until(lambda: refusals(gpu) == [(RefusedAttach.CONNECTIONS, "", 1)])
        assert "its pod holds 16 connections" in state(gpu).refusals[0].message
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
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        assert socket_of(gpu) == before, "whoever waited at it would have waited in vain"


async def test_a_broker_without_a_supervisor_takes_over_and_the_name_stays(
    gpu: GpuDir, daemon: FakeDaemon, turns: TurnServer
) -> None:
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        before = socket_of(gpu)
    turns.let_nobody_in()  # as one that has restarted since
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
    await Broker(gpu, BrokerSettings(SHARE, lambda: 7.0)).step()
    told = state(gpu)
    assert (told.listening, told.heartbeat) == (False, 7.0)
    assert "the MPS daemon cannot be reached" in told.problem
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


async def test_who_hangs_up_in_mid_attach_is_counted_and_no_failure_of_ours(gpu: GpuDir, broker: None) -> None:
    def give_up(*messages: bytes) -> None:
        with connect(gpu.attach_control) as sock:
            assert sock.recv(64) == GREETING
            for message in messages:
                sock.send(message)

    write_model(gpu.grants, grants())
    for messages in ((CREDENTIALS,), (CREDENTIALS, ATTACH)):
        await asyncio.to_thread(give_up, *messages)
    await until(lambda: state(gpu).abandoned == 2)
    assert (state(gpu).refused, state(gpu).problem) == (0, "")


async def test_who_connects_and_says_nothing_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(ProtocolError, match=r"did not say within 0\.05 s what it wants"):
            await read_request(ours, 0.05)


FLOOD = """
import socket, sys
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(sys.argv[1])
        sock.recv(64)
"""


async def test_who_connects_in_a_loop_is_told_and_delays_nobody(gpu: GpuDir, daemon: FakeDaemon) -> None:
    flood: list[int] = []

    def owners(pid: int) -> Sequence[Owner]:
        return (Owner(OTHER_POD, "b" * 64),) if pid in flood else (ME,)

    async with serving(gpu, owners=owners):
        await until(gpu.attach_control.exists)
        running = await asyncio.create_subprocess_exec(sys.executable, "-c", FLOOD, str(gpu.attach_control))
        flood.append(running.pid)
        try:
            await until(lambda: any(reason is RefusedAttach.CONNECTIONS for reason, _, _ in refusals(gpu)))
            assert state(gpu).refusals[0].pod_uid == OTHER_POD
            assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        finally:
            running.kill()
            await running.wait()


async def test_the_newest_connection_of_who_holds_most_gives_way(gpu: GpuDir, daemon: FakeDaemon) -> None:
    """To a process that was granted; those that were there before go on waiting."""
    owner = [Owner(OTHER_POD, "b" * 64)]
    async with serving(gpu, owners=lambda _: list(owner), room=4):
        await until(gpu.attach_control.exists)
        held = [await asyncio.to_thread(connect, gpu.attach_control) for _ in range(4)]
        for sock in held:
            assert await asyncio.to_thread(sock.recv, 64) == GREETING
            sock.send(CREDENTIALS)
            sock.send(ATTACH)
        owner[:] = [ME]
        assert await asyncio.to_thread(attach, gpu.attach_control) == HELLO
        assert await asyncio.to_thread(held[-1].recv, 64) == b""
        for sock in held[:-1]:
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(64)
        await until(lambda: [reason for reason, _, _ in refusals(gpu)] == [RefusedAttach.CONNECTIONS])
        assert state(gpu).abandoned == 0, "it did not hang up by itself"
        for sock in held:
            sock.close()
