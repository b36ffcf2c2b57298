"""A broker that is killed while containers wait for a place: nobody loses a turn or a place, and no server hangs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpushare.mps.attach_protocol import PlaceState
from gpushare.mps.layout import GpuDir
from tests.unit.mps.broker.fake_daemon import FakeDaemon
from tests.unit.mps.broker.serving.scene import SHARE, state, until
from tests.unit.mps.broker.serving.test_places import Scene, container
from tests.unit.mps.broker.serving.waiting_client import WaitingProcess

KILLS, TURNS = 4, 3
BROKER = f"""
import asyncio, sys
from pathlib import Path
from gpushare.mps.broker.broker import BrokerSettings, serve
from gpushare.mps.clock import boot_clock
from tests.unit.mps.broker.serving.waiting_client import owners
asyncio.run(serve(Path(sys.argv[1]), BrokerSettings("{SHARE}", boot_clock, owners, look_seconds=0.1)))
"""
GIVEN = PlaceState.GIVEN


class Brokers:
    """One broker after another, of the same GPU."""

    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        before = self._gpu.broker_state.stat().st_mtime_ns if self._gpu.broker_state.exists() else 0
        self._running = await asyncio.create_subprocess_exec(sys.executable, "-c", BROKER, str(self._gpu.path.parent))
        await until(lambda: self._gpu.attach_control.exists() and self._gpu.broker_state.exists())
        await until(lambda: self._gpu.broker_state.stat().st_mtime_ns > before and state(self._gpu).listening)

    async def kill(self) -> None:
        assert self._running is not None
        self._running.kill()
        await self._running.wait()

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """No broker runs in the block, and the next one after it."""
        await self.kill()
        yield
        await self.start()


@pytest.fixture
async def scene(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[Scene]:
    scene = Scene(gpu, daemon)
    scene.grant(*(container(f"pod-{number}") for number in range(8)))
    yield scene
    await scene.end()


@pytest.fixture
async def brokers(gpu: GpuDir, scene: Scene) -> AsyncIterator[Brokers]:
    brokers = Brokers(gpu)
    await brokers.start()
    yield brokers
    await brokers.kill()


async def wait_in_order(scene: Scene, *, by_attach: bool) -> "list[tuple[WaitingProcess, asyncio.Task[object]]]":
    """Six containers that wait, one after the other came."""
    waiting = []
    for number in range(1, 7):
        process = await scene.process(f"pod-{number}")
        waiting.append((process, process.starts("attach" if by_attach else "wait_for_place")))
        await until(lambda number=number: len(scene.queued()) == number)
    return waiting


@pytest.mark.parametrize("by_attach", [True, False], ids=["at their context's attach", "by asking for a place"])
async def test_six_that_wait_go_on_in_their_order(scene: Scene, brokers: Brokers, by_attach: bool) -> None:
    running = await scene.computes("pod-0")
    waiting = await wait_in_order(scene, by_attach=by_attach)
    before = [(item.pod_uid, item.since) for item in state(scene.gpu).queue]
    for _ in range(2):
        async with brokers.killed():
            pass
        await until(lambda: state(scene.gpu).waiting == len(waiting))
    assert scene.held() == ["pod-0"]
    assert [(item.pod_uid, item.since) for item in state(scene.gpu).queue] == before
    assert not any(task.done() for _, task in waiting)
    for process, task in waiting:
        await scene.ends(running)
        async with asyncio.timeout(10):
            assert await task == (True if by_attach else GIVEN)
        if not by_attach:
            assert await process.do("attach")
        scene.lists(process)
        running = process
    await until(lambda: not scene.daemon.hung)
    assert state(scene.gpu).without_place == []
    assert state(scene.gpu).waits.count == 7, "also those at brokers before"


async def test_a_place_that_was_given_before_is_not_given_again(scene: Scene, brokers: Brokers) -> None:
    """The server does not list yet whom the earlier broker let through."""
    first = await scene.process("pod-0")
    assert await first.do("wait_for_place") == GIVEN
    async with brokers.killed():
        pass
    second = await scene.process("pod-1")
    waiting = second.starts("wait_for_place")
    await until(lambda: scene.queued() == ["pod-1"])
    assert await first.do("attach")
    scene.lists(first)
    assert scene.held() == ["pod-0"]
    await scene.ends(first)
    assert await waiting == GIVEN


async def test_who_cheats_a_broker_that_has_just_started_is_told(scene: Scene, brokers: Brokers) -> None:
    """It takes whom the server lists at first for clients of the one before, and nobody after that."""
    await scene.computes("pod-0")
    await scene.asks("pod-1")
    async with brokers.killed():
        pass
    waiting = (await scene.process("pod-2")).starts("wait_for_place")
    cheat = await scene.process("pod-3")
    assert await cheat.do("cu_init")
    scene.lists(cheat)
    await until(lambda: [client.pod_uid for client in state(scene.gpu).without_place] == ["pod-3"])
    assert scene.held() == ["pod-0"]
    assert not waiting.done()


async def test_whoever_comes_back_later_has_its_turn_before_newcomers(scene: Scene, brokers: Brokers) -> None:
    """Also where a place is free: that of a GPU which took no client when it fell free."""
    running = await scene.computes("pod-0")
    first, _ = await scene.asks("pod-1")
    newcomer = await scene.process("pod-2")
    await until(lambda: scene.queued() == ["pod-1"])
    scene.grant(closed="Pending: later")
    await scene.ends(running)
    await until(lambda: scene.held() == [])
    async with brokers.killed():
        scene.grant()
        early = newcomer.starts("wait_for_place")
    await until(lambda: scene.queued() == ["pod-2", "pod-1"])
    assert not early.done()
    assert await first.do("wait_for_place") == GIVEN
    assert not early.done()
    await scene.ends(first)
    assert await early == GIVEN


async def test_brokers_killed_at_any_moment_give_no_place_twice(scene: Scene, brokers: Brokers) -> None:
    """Containers that get a place, compute and end, over and over, while broker after broker is killed."""
    scene.grant(places=2)
    computing: set[str] = set()
    most = steps = 0

    async def works(uid: str) -> None:
        nonlocal most, steps
        for _ in range(TURNS):
            process = await scene.process(uid, inits=False)
            while not await process.do("cu_init"):
                steps += 1
            while await process.do("wait_for_place") != GIVEN or not await process.do("attach"):
                steps += 1
            scene.lists(process)
            computing.add(uid)
            most = max(most, len(computing))
            await asyncio.sleep(0.1)  # it computes
            computing.discard(uid)
            await scene.ends(process)
            steps += 1

    working = [asyncio.create_task(works(f"pod-{number}")) for number in range(4)]
    for number in range(KILLS):
        came = steps
        await until(lambda came=came: steps > came)
        await asyncio.sleep(number * 0.003)
        async with brokers.killed():
            pass
    async with asyncio.timeout(120):
        await asyncio.gather(*working)
    await until(lambda: not scene.daemon.hung)
    assert most == 2
    assert state(scene.gpu).without_place == []
