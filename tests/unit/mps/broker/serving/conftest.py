"""The broker against a daemon that speaks the measured protocol, over real sockets, with the supervisor's own turns."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from tests.unit.mps.broker.fake_daemon import (
    SERVER,
    Commands,
    FakeDaemon,
)
from tests.unit.mps.broker.serving.scene import CEILING, MINE, SHARE, Processes, grants, serving, until


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


@pytest.fixture
async def processes() -> AsyncIterator[Processes]:
    started = Processes()
    yield started
    await started.end()
