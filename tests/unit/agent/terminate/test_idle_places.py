"""What is done about a client that keeps its place and launches nothing: notice, its end, and words that say why."""

from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.observe.usage import Reading
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.idle_places import IdlePlaces, QueuedGpu
from gpushare.api.conditions import EventReason
from gpushare.api.gpushare import GpuShare
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import BrokerState, PlaceHolder, PlacesInUse
from tests.unit.agent.observe.test_idle import client, page
from tests.unit.agent.observed_pods import UUID, uid
from tests.unit.agent.terminate.settled import settle
from tests.unit.agent.terminate.test_shortage import Daemon, Events

HELD = [PlaceHolder(pod_uid=uid(1), container="app", since=1.0)]


def share(**queue: Any) -> GpuShare:
    clients = {"perGpu": 1, "memory": {"default": "8Gi"}, "queue": {"slots": 8, **queue}}
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": clients}})


class World:
    """One GPU of share a with one place, whose holder launched last at 90 s."""

    def __init__(self, tmp_path: Path) -> None:
        self.now, self.proc = 100.0, tmp_path / "proc"
        self.daemon, self.events = Daemon(), Events()
        gpu_dir(tmp_path / "run", UUID).path.mkdir(parents=True)
        (self.proc / "1").mkdir(parents=True)
        (self.proc / "1" / "stat").write_text("1 (python) S " + " ".join(["0"] * 18 + ["100", "0"]))
        executor = TerminationExecutor(
            tmp_path / "run", lambda _: self.daemon, self.events.record, lambda: self.now, self.proc
        )
        self.idle = IdlePlaces(executor, self.events)

    async def read(
        self, seconds: float, of: GpuShare, *, waiting: int = 2, limit: int = 1, is_open: bool = True
    ) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 2
            broker = BrokerState(
                uuid=UUID,
                heartbeat=self.now,
                listening=True,
                places=PlacesInUse(limit=limit, held=HELD),
                waiting=waiting,
                activity=[page(1, 90.0)],
            )
            reading = Reading(UUID, "a", self.now, 80_000, (client(1),))
            self.idle.observe([reading], {UUID: QueuedGpu(broker, 50, is_open)}, {"a": of})
            await settle()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_an_idle_holder_gets_notice_and_is_ended_by_the_daemon(world: World) -> None:
    await world.read(110, share(idleAfter="2m"))
    (notice,) = world.events.recorded
    assert (notice.reason, notice.regarding["name"]) == (EventReason.IDLE_NOTICE, "pod-1")
    assert "are ended in 60 s (clients.queue.idleAfter): save what is on the GPU." in notice.note
    assert world.daemon.asked == []
    await world.read(20, share(idleAfter="2m"))
    assert world.daemon.asked == [1]
    ended = world.events.recorded[-1]
    assert (ended.reason, ended.regarding["name"]) == (EventReason.CLIENT_TERMINATED, "pod-1")
    assert "2 other containers wait for a place" in ended.note
    assert "CUDA error 810" in ended.note


@pytest.mark.parametrize(
    ("sentence", "of", "state"),
    [
        ("a share that does not say idleAfter", share(), {}),
        ("nobody waits", share(idleAfter="2m"), {"waiting": 0}),
        ("a place is free", share(idleAfter="2m"), {"limit": 2}),
        ("the GPU lets nobody in", share(idleAfter="2m"), {"is_open": False}),
    ],
)
async def test_nobody_is_told_or_ended_where(world: World, sentence: str, of: GpuShare, state: dict[str, Any]) -> None:
    await world.read(200, of, **state)
    assert (world.events.recorded, world.daemon.asked) == ([], []), sentence
