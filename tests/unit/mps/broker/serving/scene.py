"""A GPU whose broker runs, who may attach to it, and processes that do."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import (
    BrokerState,
    ClientGrant,
    DaemonLimits,
    GpuGrants,
    GrantedContainer,
    GrantedPod,
    RefusedAttach,
)
from gpushare.process.procfs import Owner

SHARE = "inference"
CEILING = DaemonLimits(threads=50, memory_mib=8192)
POD, OTHER_POD = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
ME = Owner(POD, "a" * 64)
GRANT = ClientGrant(threads=10, memory_mib=2048, processes=2)


def grants(*pods: GrantedPod, closed: str = "") -> GpuGrants:
    return GpuGrants(uuid="GPU-0", share=SHARE, closed=closed, pods=list(pods))


def pod(uid: str, *containers: GrantedContainer) -> GrantedPod:
    return GrantedPod(uid=uid, namespace="ml", name="train", containers=list(containers))


MINE = pod(POD, GrantedContainer(name="app", id=ME.container_id, grant=GRANT))


def mine(_: int) -> Sequence[Owner]:
    """This test's own processes are of container `app`."""
    return (ME,)


@asynccontextmanager
async def serving(
    gpu: GpuDir,
    share: str = SHARE,
    owners: Callable[[int], Sequence[Owner] | None] = mine,
    clock: Callable[[], float] = lambda: 7.0,
    **options: Any,
) -> AsyncIterator[None]:
    """The broker of the MPS pod of `share`, as its process runs it. `options`: further settings."""
    running = asyncio.create_task(serve(gpu.path.parent, BrokerSettings(share, clock, owners, **options)))
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
    stored = read_model(gpu.broker_state, BrokerState).value
    return [(refusal.reason, refusal.container, refusal.count) for refusal in stored.refusals] if stored else []


def socket_of(gpu: GpuDir) -> tuple[int, int]:
    """Which socket has the name; a file system may give an inode's number to the next one."""
    status = gpu.attach_control.stat()
    return status.st_ino, status.st_ctime_ns


def state(gpu: GpuDir) -> BrokerState:
    stored = read_model(gpu.broker_state, BrokerState).value
    assert stored is not None
    return stored


CLIENT = """
import sys
from pathlib import Path
from tests.unit.mps.broker.fake_daemon import attach
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
        await asyncio.to_thread(self._process.wait, 60)


class Processes:
    """Each process attaches on request and ends with the test."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(self, path: Path) -> Process:
        self._started.append(Process(path))
        return self._started[-1]

    async def end(self) -> None:
        for client in self._started:
            await client.end()
