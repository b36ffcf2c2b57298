"""Departures on one node, in real time: pods, their processes, and who was ended."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.termination.departure import DepartureGuard
from gpushare.agent.termination.kubelet_kills import KubeletKill
from gpushare.agent.termination.terminate import ClientTerminator
from tests.unit.agent.departing_pods import Node, pod, uid

OTHER = "cd" * 32


class World(Node):
    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.events: list[Any] = []
        self.clock_ahead = 0.0
        self.departure = DepartureGuard(
            self,  # type: ignore[arg-type]
            lambda: self.pods,
            lambda: list(self.listed),
            ClientTerminator(proc, self.control, proc),
            self.events.append,
            clock=lambda: asyncio.get_running_loop().time() + self.clock_ahead,
            proc=proc,
        )

    def show(self, *pods: Any) -> None:
        self.pods = {one["metadata"]["uid"]: one for one in pods}
        self.departure.poke()

    async def until_ended(self, *pids: int) -> None:
        await self._until(lambda: sorted(self.ended) == sorted(pids))

    async def told(self) -> Any:
        """The one event, which comes after the end that it tells of."""
        await self._until(lambda: bool(self.events))
        [event] = self.events
        return event

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(8):
            while not holds():  # noqa: ASYNC110 - the code under test knows no event
                await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    running = asyncio.create_task(world.departure.run())
    yield world
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def begin(world: World, *pods: Any) -> None:
    world.show(*pods)
    await asyncio.sleep(0.05)


async def test_a_client_that_would_die_of_sigterm_is_ended_long_before_the_end_of_its_grace(world: World) -> None:
    world.client(10, 1)
    world.client(11, 2)
    await begin(world, pod(1), pod(2))
    assert world.ended == []
    world.show(pod(1, grace=30), pod(2))
    await world.until_ended(10)
    await asyncio.sleep(0.4)
    assert world.ended == [10]


async def test_a_client_that_catches_sigterm_is_left_until_2_s_before_its_end(world: World) -> None:
    world.client(10, 1, catches=True)
    await begin(world, pod(1))
    world.show(pod(1, grace=30))
    await asyncio.sleep(0.4)
    assert world.ended == []
    world.clock_ahead = 27.7
    await world.until_ended(10)


async def test_without_grace_every_client_is_ended_at_once(world: World) -> None:
    world.client(10, 1, catches=True)
    await begin(world, pod(1))
    world.show(pod(1, grace=0))
    await world.until_ended(10)


async def test_clients_of_a_pod_that_is_gone_from_the_api_are_ended(world: World) -> None:
    world.client(10, 1, catches=True)
    await begin(world, pod(1))
    world.show()
    await world.until_ended(10)


async def test_of_a_container_that_the_kubelet_ends_by_itself_the_clients_are_ended_and_no_others(world: World) -> None:
    world.client(10, 1)
    world.client(11, 1, container=OTHER)
    await begin(world, pod(1))
    said = "Container app failed liveness probe"
    world.departure.killing(KubeletKill(uid(1), "team", "pod-1", "app", "Killing", said, time.time()))
    await world.until_ended(10)
    await asyncio.sleep(0.4)
    assert world.ended == [10]
    told = await world.told()
    assert "the pod loses container app, which the kubelet ends (Container app failed liveness probe)" in told.note


async def test_a_client_that_catches_sigterm_is_ended_at_once_where_its_parent_would_take_it_along(
    world: World,
) -> None:
    world.client(9, 1)
    world.listed["GPU-0"].remove(9)
    world.client(10, 1, catches=True, parent=9)
    await begin(world, pod(1))
    world.show(pod(1, grace=30))
    await world.until_ended(10)
    told = await world.told()
    assert "would be killed as soon as process 9, which it depends on, dies of SIGTERM" in told.note


async def test_every_client_process_of_the_pod_is_ended_also_later_ones_and_on_other_gpus(world: World) -> None:
    world.client(10, 1)
    world.client(11, 1)
    world.client(12, 1, gpu="GPU-1")
    await begin(world, pod(1))
    world.show(pod(1, grace=30))
    await world.until_ended(10, 11, 12)
    world.client(13, 1)
    await world.until_ended(10, 11, 12, 13)


async def test_a_process_is_ended_once_though_nvml_still_shows_it(world: World) -> None:
    world.stays_listed = True
    world.client(10, 1)
    world.show(pod(1, grace=30))
    await asyncio.sleep(0.8)
    assert world.ended == [10]


async def test_a_pid_that_became_another_process_is_left_alone(world: World) -> None:
    world.client(10, 1)
    world.before_end = lambda: world.client(10, 2, started=999)
    world.show(pod(1, grace=30), pod(2))
    await asyncio.sleep(0.5)
    assert world.ended == []


async def test_the_event_tells_who_was_ended_and_why(world: World) -> None:
    world.client(10, 1)
    world.show(pod(1, grace=30))
    await world.until_ended(10)
    event = await world.told()
    assert (event.kind, event.reason) == ("Normal", "ClientTerminated")
    assert event.regarding["uid"] == uid(1)
    assert event.note == (
        "Ended the CUDA contexts of process 10 (container app of pod team/pod-1) on GPU GPU-0 through its MPS daemon: "
        "the pod is being deleted with a grace period of 30 s, the process does not catch SIGTERM, and being killed in "
        "the middle of a kernel it would take all other clients of this GPU with it."
    )


async def test_a_second_server_of_the_daemon_is_asked_too(world: World) -> None:
    world.servers = [400, 500]
    world.client(10, 1)
    world.show(pod(1, grace=30))
    await world.until_ended(10)


async def test_one_refusal_does_not_keep_others_from_their_end(world: World) -> None:
    world.refused = {10}
    world.client(10, 1)
    world.client(11, 1)
    world.show(pod(1, grace=30))
    await world.until_ended(11)
    world.refused = set()
    await world.until_ended(10, 11)


async def test_a_daemon_that_does_not_answer_is_asked_again_and_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.wedged = True
    world.client(10, 1)
    with caplog.at_level(logging.WARNING):
        world.show(pod(1, grace=30))
        await asyncio.sleep(1.3)
    world.wedged = False
    await world.until_ended(10)
    assert [record.getMessage() for record in caplog.records if "not ended yet" in record.getMessage()] == [
        "clients of departing pods on GPU GPU-0 not ended yet, trying again: no answer within 5 s"
    ]


async def test_a_termination_whose_answer_was_lost_is_not_repeated_since_a_second_one_hangs_the_daemon(
    world: World,
) -> None:
    world.answer_lost, world.stays_listed = True, True
    world.client(10, 1)
    world.show(pod(1, grace=30))
    await asyncio.sleep(1.5)
    assert world.ended == [10]


async def test_a_lost_gpu_does_not_hold_up_the_other(world: World) -> None:
    world.lost = {"GPU-0"}
    world.client(10, 1, gpu="GPU-1")
    world.show(pod(1, grace=30))
    await world.until_ended(10)


async def test_nothing_is_polled_while_no_pod_departs(world: World) -> None:
    world.client(10, 1)
    await begin(world, pod(1), pod(2, phase="Succeeded"))
    world.show(pod(1), pod(2, phase="Failed"), pod(3, grace=30, phase="Succeeded"))
    await asyncio.sleep(0.6)
    assert world.asked == 0
