"""A share's maxWait is over: who is ended, once, and who is told what before and after."""

import asyncio
from pathlib import Path

import pytest

from gpushare.agent.termination.max_wait import ExpiredGpu, MaxWaitEnforcer
from gpushare.agent.termination.terminate import ClientTerminator
from gpushare.kube.event_recorder import Event
from tests.unit.agent.departing_pods import Node, pod, uid


class World(Node):
    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.expired: list[ExpiredGpu] = []
        self.story: list[str] = []
        self.pods = {uid(number): pod(number) for number in (1, 2)}
        self.before_end = lambda: self.story.append("end")
        endings = ClientTerminator(proc, self.control, proc)
        self.expiry = MaxWaitEnforcer(self, lambda: self.expired, lambda: self.pods, endings, self._tell, proc=proc)  # type: ignore[arg-type]

    def _tell(self, news: Event) -> None:
        self.story.append(f"{news.reason} {news.regarding['name']}")

    async def looks(self, count: int = 1) -> None:
        for _ in range(count):
            self.expiry._look()
            await asyncio.gather(*self.expiry._looks.values())


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.client(10, 1)
    world.client(11, 2, catches=True)
    world.client(12, 1, gpu="GPU-1")
    return world


async def test_as_long_as_no_maxwait_is_over_nobody_is_touched(world: World) -> None:
    await world.looks()
    assert (world.ended, world.story) == ([], [])


async def test_every_client_of_that_gpu_alone_is_ended_once_and_told_before_and_after(world: World) -> None:
    world.expired = [ExpiredGpu("GPU-0", "a")]
    world.stays_listed = True
    await world.looks(3)
    assert world.ended == [10, 11]
    assert world.story == [
        "MaxWaitExpired pod-1",
        "MaxWaitExpired pod-2",
        "end",
        "ClientTerminated pod-1",
        "ClientTerminated pod-2",
    ]


async def test_a_client_that_comes_later_is_ended_too_but_its_pod_is_not_warned_again(world: World) -> None:
    world.expired = [ExpiredGpu("GPU-0", "a")]
    await world.looks()
    world.story.clear()
    world.client(13, 1)
    await world.looks()
    assert world.ended == [10, 11, 13]
    assert world.story == ["end", "ClientTerminated pod-1"]


async def test_a_client_that_is_no_pods_is_ended_without_an_event(world: World) -> None:
    world.expired = [ExpiredGpu("GPU-0", "a")]
    world.pods = {}
    await world.looks()
    assert world.ended == [10, 11]
    assert world.story == ["end"]


async def test_a_daemon_that_does_not_answer_is_asked_again_at_the_next_look(world: World) -> None:
    world.expired = [ExpiredGpu("GPU-0", "a")]
    world.absent = True
    await world.looks()
    world.absent = False
    await world.looks()
    assert world.ended == [10, 11]


async def test_a_gpu_that_is_lost_holds_up_no_other(world: World) -> None:
    world.expired = [ExpiredGpu("GPU-0", "a"), ExpiredGpu("GPU-1", "a")]
    world.lost = {"GPU-0"}
    await world.looks()
    assert world.ended == [12]
