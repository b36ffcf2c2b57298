"""A share's maxWait is over: which clients are terminated, once each, and which events come before and after."""

from pathlib import Path

import pytest

from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.max_wait import SCAN_SECONDS, MaxWaitEnforcer
from gpushare.kube.events.event import Event
from tests.unit.agent.departing_pods import Node, pod, uid
from tests.unit.agent.terminate.settled import settle


def expired(uuid: str, share: str) -> GpuPlan:
    return GpuPlan(uuid, share, GpuStage.DRAIN, None, ends_clients=True)


class World(Node):
    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.expired: list[GpuPlan] = []
        self.story: list[str] = []
        self.pods = {uid(number): pod(number) for number in (1, 2)}
        self.before_end = lambda: self.story.append("end")
        self.now = 0.0
        executor = TerminationExecutor(proc, self.control, self._record, lambda: self.now, proc)
        self.enforcer = MaxWaitEnforcer(
            self,  # type: ignore[arg-type]
            lambda: self.expired,
            lambda: self.pods,
            executor,
            self._record,
            proc=proc,
        )

    def _record(self, event: Event) -> None:
        self.story.append(f"{event.reason} {event.regarding['name']}")

    async def scan(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += SCAN_SECONDS
            await settle(self.enforcer.start_scans())


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.client(10, 1)
    world.client(11, 2, catches=True)
    world.client(12, 1, gpu="GPU-1")
    return world


async def test_before_maxwait_is_over_no_client_is_touched(world: World) -> None:
    await world.scan()
    assert (world.ended, world.story) == ([], [])


async def test_clients_of_that_gpu_are_ended_once_with_events_before_and_after(world: World) -> None:
    world.expired = [expired("GPU-0", "a")]
    world.stays_listed = True
    await world.scan(3)
    assert world.ended == [10, 11]
    assert world.story == [
        "MaxWaitExpired pod-1",
        "MaxWaitExpired pod-2",
        "end",
        "ClientTerminated pod-1",
        "ClientTerminated pod-2",
    ]


async def test_a_later_client_is_ended_too_and_its_pod_is_not_warned_again(world: World) -> None:
    world.expired = [expired("GPU-0", "a")]
    await world.scan()
    world.story.clear()
    world.client(13, 1)
    await world.scan()
    assert world.ended == [10, 11, 13]
    assert world.story == ["end", "ClientTerminated pod-1"]


async def test_a_client_that_belongs_to_no_pod_is_ended_without_an_event(world: World) -> None:
    world.expired = [expired("GPU-0", "a")]
    world.pods = {}
    await world.scan()
    assert world.ended == [10, 11]
    assert world.story == ["end"]


async def test_a_daemon_that_does_not_answer_is_asked_again_at_the_next_scan(world: World) -> None:
    world.expired = [expired("GPU-0", "a")]
    world.absent = True
    await world.scan()
    world.absent = False
    await world.scan()
    assert world.ended == [10, 11]


async def test_a_gpu_that_is_lost_twice_is_told_twice(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.expired, world.refused = [expired("GPU-0", "a")], {10, 11}
    for lost in ({"GPU-0"}, {"GPU-0"}, set[str](), {"GPU-0"}):
        world.lost = lost
        await world.scan()
    told = [record.getMessage() for record in caplog.records if "GPU is lost" in record.getMessage()]
    assert len(told) == 2
    assert told[0] == "clients whose share's maxWait is over on GPU GPU-0 not ended yet, trying again: GPU is lost"


async def test_a_gpu_that_is_lost_holds_up_no_other(world: World) -> None:
    world.expired = [expired("GPU-0", "a"), expired("GPU-1", "a")]
    world.lost = {"GPU-0"}
    await world.scan()
    assert world.ended == [12]
