"""Departures on one node: pods, their processes, and which clients are terminated when."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.terminate.departure_guard import RESCAN_SECONDS, SLOW_RESCAN_SECONDS, DepartureGuard, pause
from gpushare.agent.terminate.departures import Departure
from gpushare.agent.terminate.executor import RETRY_SECONDS, TerminationExecutor
from gpushare.agent.terminate.kubelet_kills import KubeletKill
from gpushare.kube.events.event import Event
from tests.unit.agent.departing_pods import Node, pod, uid
from tests.unit.agent.terminate.settled import settle

OTHER = "cd" * 32
WALL = 1767225600.0
"""2026-01-01T00:00:00Z, when the tests begin."""


class World(Node):
    def __init__(self, proc: Path) -> None:
        super().__init__(proc)
        self.now = 0.0
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.guard = DepartureGuard(
            self,  # type: ignore[arg-type]
            lambda: self.pods,
            lambda: list(self.listed),
            TerminationExecutor(proc, self.control, self.events.put_nowait, lambda: self.now, proc),
            clock=lambda: self.now,
            wall=lambda: WALL + self.now,
            proc=proc,
            served=lambda uuid: self.listed[uuid],
        )

    def show(self, *pods: Any) -> None:
        self.pods = {pod["metadata"]["uid"]: pod for pod in pods}
        self.guard.pods_changed()

    async def at(self, now: float, *pods: Any) -> list[int]:
        """The clients terminated so far, after a scan at this time. `pods` replace those of before."""
        self.now = now
        if pods:
            self.show(*pods)
        await settle(self.guard.start_scans())
        return self.ended

    def event(self) -> Event:
        """The only one."""
        event = self.events.get_nowait()
        assert self.events.empty()
        return event


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_client_that_would_die_of_sigterm_is_ended_at_once(world: World) -> None:
    world.client(10, 1)
    world.client(11, 2)
    assert await world.at(0, pod(1), pod(2)) == []
    assert await world.at(1, pod(1, grace=30), pod(2)) == [10]
    assert await world.at(2) == [10]


async def test_a_client_that_catches_sigterm_is_left_until_2_s_before_its_end(world: World) -> None:
    world.client(10, 1, catches=True)
    await world.at(0, pod(1))
    assert await world.at(1, pod(1, grace=30)) == []
    assert await world.at(28.9) == []
    assert await world.at(29) == [10]


async def test_a_client_under_a_forged_pid_is_ended_by_the_pid_that_it_sent(world: World) -> None:
    """NVML shows process 11, and the MPS server lists process 10 of the same pod in its place."""
    world.client(11, 1)
    world.client(10, 1)
    world.listed["GPU-0"].remove(11)
    world.true = {10: 11}
    await world.at(0, pod(1))
    assert await world.at(1, pod(1, grace=30)) == [10]


async def test_without_grace_every_client_is_ended_at_once(world: World) -> None:
    world.client(10, 1, catches=True)
    await world.at(0, pod(1))
    assert await world.at(1, pod(1, grace=0)) == [10]


async def test_clients_of_a_pod_that_is_gone_from_the_api_are_ended(world: World) -> None:
    world.client(10, 1, catches=True)
    await world.at(0, pod(1))
    world.show()
    assert await world.at(1) == [10]


async def test_clients_of_a_container_that_the_kubelet_ends_are_ended_alone(world: World) -> None:
    world.client(10, 1)
    world.client(11, 1, container=OTHER)
    await world.at(0, pod(1))
    message = "Container app failed liveness probe"
    world.guard.add_kill(KubeletKill(uid(1), "team", "pod-1", "app", "Killing", message, WALL))
    assert await world.at(1) == [10]
    assert await world.at(2) == [10]
    note = world.event().note
    assert "the pod loses container app, which the kubelet ends (Container app failed liveness probe)" in note


async def test_a_client_that_its_parent_would_take_along_is_ended_at_once(world: World) -> None:
    world.client(9, 1)
    world.listed["GPU-0"].remove(9)
    world.client(10, 1, catches=True, parent=9)
    await world.at(0, pod(1))
    assert await world.at(1, pod(1, grace=30)) == [10]
    assert "would be killed as soon as process 9, which it depends on, dies of SIGTERM" in world.event().note


async def test_unreadable_ancestors_end_their_client_and_hide_no_other(world: World) -> None:
    world.client(9, 1)
    world.listed["GPU-0"].remove(9)
    (world.proc / "9/status").unlink()
    (world.proc / "9/status").mkdir()
    world.client(10, 1, catches=True, parent=9)
    world.client(11, 2)
    await world.at(0, pod(1), pod(2))
    assert await world.at(1, pod(1, grace=30), pod(2, grace=30)) == [10, 11]
    notes = [world.events.get_nowait().note for _ in range(2)]
    assert any("its ancestors could not be read" in note for note in notes)


async def test_later_clients_of_the_pod_and_those_on_other_gpus_are_ended_too(world: World) -> None:
    world.client(10, 1)
    world.client(11, 1)
    world.client(12, 1, gpu="GPU-1")
    await world.at(0, pod(1))
    assert sorted(await world.at(1, pod(1, grace=30))) == [10, 11, 12]
    world.client(13, 1)
    assert sorted(await world.at(1.25)) == [10, 11, 12, 13]


async def test_a_process_is_ended_once_though_nvml_still_shows_it(world: World) -> None:
    world.stays_listed = True
    world.client(10, 1)
    for now in range(5):
        await world.at(now, pod(1, grace=30))
    assert world.ended == [10]


async def test_a_pid_that_became_another_process_is_left_alone(world: World) -> None:
    world.client(10, 1)
    world.before_end = lambda: world.client(10, 2, started=999)
    assert await world.at(0, pod(1, grace=30), pod(2)) == []
    assert await world.at(2) == []


async def test_the_event_names_the_process_and_why_it_was_ended(world: World) -> None:
    world.client(10, 1)
    await world.at(0, pod(1, grace=30))
    event = world.event()
    assert (event.type, event.reason) == ("Normal", "ClientTerminated")
    assert event.regarding["uid"] == uid(1)
    assert event.note == (
        "Ended the CUDA contexts of process 10 (container app of pod team/pod-1) on GPU GPU-0 through its MPS daemon: "
        "the pod is being deleted with a grace period of 30 s, the process does not catch SIGTERM, and being killed in "
        "the middle of a kernel it would take all other clients of this GPU with it."
    )


async def test_a_second_server_of_the_daemon_is_asked_too(world: World) -> None:
    world.servers = [400, 500]
    world.client(10, 1)
    assert await world.at(0, pod(1, grace=30)) == [10]


async def test_a_refusal_holds_up_no_other_client_and_is_tried_again(world: World) -> None:
    world.refused = {10}
    world.client(10, 1)
    world.client(11, 1)
    assert await world.at(0, pod(1, grace=30)) == [11]
    world.refused = set()
    assert await world.at(RETRY_SECONDS - 0.1) == [11]
    assert await world.at(RETRY_SECONDS) == [11, 10]


async def test_a_daemon_that_does_not_answer_is_asked_again_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.wedged = True
    world.client(10, 1)
    with caplog.at_level(logging.WARNING):
        for now in (0, 1, 2):
            await world.at(now, pod(1, grace=30))
    assert [record.getMessage() for record in caplog.records] == [
        "clients of departing pods on GPU GPU-0 not ended yet, trying again: no answer within 5 s"
    ]
    world.wedged = False
    assert await world.at(3) == [10]


async def test_a_termination_whose_answer_was_lost_is_not_repeated(
    world: World,
) -> None:
    world.answer_lost, world.stays_listed = True, True
    world.client(10, 1)
    for now in range(5):
        await world.at(now, pod(1, grace=30))
    assert world.ended == [10]


async def test_a_lost_gpu_does_not_hold_up_the_other(world: World) -> None:
    world.lost = {"GPU-0"}
    world.client(10, 1, gpu="GPU-1")
    assert await world.at(0, pod(1, grace=30)) == [10]


async def test_nvml_is_not_asked_while_no_pod_departs(world: World) -> None:
    world.client(10, 1)
    await world.at(0, pod(1), pod(2, phase="Succeeded"))
    await world.at(1, pod(1), pod(2, phase="Failed"), pod(3, grace=30, phase="Succeeded"))
    assert world.asked == 0


async def test_a_running_guard_follows_pods_and_finds_clients_that_start_later(world: World) -> None:
    world.client(10, 1)
    world.show(pod(1))
    running = asyncio.create_task(world.guard.run())
    async with asyncio.timeout(8):
        world.show(pod(1, grace=30))
        await world.events.get()
        world.client(11, 1)
        await world.events.get()
    assert world.ended == [10, 11]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("now", "kill_at", "seconds"),
    [
        pytest.param(1.0, 30.0, RESCAN_SECONDS, id="it has just begun"),
        pytest.param(10.0, 3600.0, SLOW_RESCAN_SECONDS, id="an hour of grace is not spent on scans"),
        pytest.param(3595.0, 3600.0, RESCAN_SECONDS, id="the end is near"),
        pytest.param(4000.0, 3600.0, SLOW_RESCAN_SECONDS, id="a process that will not die"),
    ],
)
def test_how_often_departing_clients_are_scanned(now: float, kill_at: float, seconds: float) -> None:
    assert pause({"uid": (Departure({}, kill_at, kill_at, "departs"),)}, now) == seconds
    assert pause({}, now) is None


def stopped_by(given: Any, reported: str = "", specified: str = "") -> Any:
    """The same pod, whose container is stopped by another signal: as its status says, or as its spec does."""
    [container], [status] = given["spec"]["containers"], given["status"]["containerStatuses"]
    container |= {"lifecycle": {"stopSignal": specified}} if specified else {}
    status |= {"stopSignal": reported} if reported else {}
    return given


@pytest.mark.parametrize(
    ("stop", "ended"),
    [
        ({"reported": "SIGTERM"}, []),
        ({"reported": "SIGTERM", "specified": "SIGKILL"}, []),
        ({"reported": "SIGQUIT"}, [10]),
        ({"reported": "SIGRTMIN+3"}, [10]),
        ({"specified": "SIGKILL"}, [10]),
        ({"specified": "SIGNONSENSE"}, [10]),
    ],
)
async def test_a_client_that_does_not_catch_its_stop_signal_is_ended_at_once(
    world: World, stop: dict[str, str], ended: list[int]
) -> None:
    world.client(10, 1, catches=True)
    await world.at(0, stopped_by(pod(1), **stop))
    assert await world.at(1, stopped_by(pod(1, grace=30), **stop)) == ended
    if ended:
        assert f"does not catch {stop.get('reported') or stop['specified']}" in world.event().note


async def test_a_cgroup_that_a_container_made_hides_no_client_from_a_departure(world: World) -> None:
    world.client(10, 1)
    inner = f"/kubepods/burstable/pod{uid(2)}/{OTHER}"
    cgroup = world.proc / "10" / "cgroup"
    cgroup.write_text(cgroup.read_text().rstrip() + inner + "\n")
    await world.at(0, pod(1), pod(2))
    assert await world.at(1, pod(1, grace=30), pod(2)) == [10]
