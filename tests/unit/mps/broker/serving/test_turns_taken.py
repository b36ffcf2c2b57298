"""A client attaches in a turn in which its own limits are in force."""

import asyncio
import os
import socket
import threading

import pytest

from gpushare.mps.broker.attach import ATTACH_SECONDS
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import (
    ClientGrant,
    GrantedContainer,
    RefusedAttach,
)
from gpushare.process.procfs import Owner
from tests.unit.mps.broker.fake_daemon import (
    CREDENTIALS,
    HELLO,
    SERVER,
    Commands,
    FakeDaemon,
    attach,
    client_socket,
)
from tests.unit.mps.broker.serving.scene import (
    CEILING,
    GRANT,
    ME,
    MINE,
    OTHER_POD,
    POD,
    grants,
    pod,
    refusals,
    serving,
    until,
)


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


async def test_a_silent_peer_delays_others_for_two_seconds(gpu: GpuDir, daemon: FakeDaemon) -> None:
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
    async with serving(gpu):
        await until(gpu.attach_control.exists)
        gpu.turns.unlink()
        waiting = asyncio.create_task(asyncio.to_thread(attach, gpu.attach_control))
        await asyncio.sleep(0.3)
        assert (waiting.done(), daemon.attaches) == (False, 0)
        again = TurnServer(gpu, Commands(), lambda: Terms(SERVER, CEILING), threading.Lock(), os.geteuid())
        again.start()
        assert await waiting == HELLO
        again.end()
