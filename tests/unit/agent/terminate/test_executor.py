"""Requests take their turns: departures first, GPUs apart, each client once, and what failed again after a while."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from gpushare.agent.process import processes
from gpushare.agent.process.processes import Process, ProcessIdentity
from gpushare.agent.terminate.executor import RETRY_SECONDS, TerminationExecutor
from gpushare.agent.terminate.requests import TerminationReason, TerminationRequest
from gpushare.kube.events.event import Event
from gpushare.mps.control import ControlTimeoutError
from tests.unit.agent.departing_pods import Control, Node
from tests.unit.agent.terminate.settled import settle

DEPARTURE, MAX_WAIT = TerminationReason.DEPARTURE, TerminationReason.MAX_WAIT
VIOLATION, SHORTAGE, FAULT = TerminationReason.VIOLATION, TerminationReason.SHORTAGE, TerminationReason.FAULT
POD: Any = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "pod-1", "uid": "u"}


class World(Node):
    """Each GPU's daemon answers a command only while its gate is open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.now = 100.0
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.attempts: list[tuple[TerminationReason, int, bool]] = []
        self.sent: list[tuple[int, str]] = []
        self.entered: asyncio.Queue[int] = asyncio.Queue()
        self.broken: Exception | None = None
        self.gates = {"GPU-0": threading.Event(), "GPU-1": threading.Event()}
        for gpu, gate in self.gates.items():
            (root / gpu).mkdir()
            gate.set()
        self.loop = asyncio.get_running_loop()
        self.executor = TerminationExecutor(
            root,
            self._daemon,
            self.events.put_nowait,
            lambda: self.now,
            self.proc,
            lambda *attempt: self.attempts.append(attempt),
            self._send,
        )

    def request(self, pid: int, reason: TerminationReason, gpu: str = "GPU-0", **fields: Any) -> TerminationRequest:
        return TerminationRequest(reason, gpu, self.runs(pid, gpu), POD, "", ".", **fields)

    def runs(self, pid: int, gpu: str = "GPU-0") -> Process:
        self.client(pid, 1, gpu=gpu)
        process = processes.read(pid, self.proc)
        assert process is not None
        return process

    def _daemon(self, gpu: str) -> "GatedControl":
        if self.broken is not None:
            raise self.broken
        return GatedControl(self, gpu)

    def _send(self, process: ProcessIdentity, number: Signals, _: Path) -> bool:
        self.sent.append((process.pid, number.name))
        return True


class GatedControl(Control):
    def __init__(self, world: World, gpu: str) -> None:
        super().__init__(world, gpu)
        self.world, self.gpu = world, gpu

    def terminate_client(self, server: int, pid: int) -> bool:
        self.world.loop.call_soon_threadsafe(self.world.entered.put_nowait, pid)
        assert self.world.gates[self.gpu].wait(10)
        return super().terminate_client(server, pid)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_departure_waits_only_for_the_command_under_way(world: World) -> None:
    world.gates["GPU-0"].clear()
    world.executor.submit(world.request(pid, MAX_WAIT) for pid in (10, 11, 12))
    assert await world.entered.get() == 10
    world.executor.submit([world.request(20, DEPARTURE)])
    world.gates["GPU-0"].set()
    await settle()
    assert world.ended == [10, 20, 11, 12]


async def test_reasons_and_then_deadlines_order_the_turns(world: World) -> None:
    world.executor.submit(
        [
            world.request(10, SHORTAGE),
            world.request(11, VIOLATION),
            world.request(12, MAX_WAIT),
            world.request(13, DEPARTURE, deadline=20.0),
            world.request(14, DEPARTURE, deadline=10.0),
        ]
    )
    await settle()
    assert world.ended == [14, 13, 12, 11, 10]


async def test_a_gpu_whose_daemon_hangs_holds_up_no_other_gpu(world: World) -> None:
    world.gates["GPU-1"].clear()
    world.executor.submit([world.request(10, DEPARTURE, "GPU-1")])
    assert await world.entered.get() == 10
    world.executor.submit([world.request(11, DEPARTURE)])
    async with asyncio.timeout(10):
        await world.events.get()
    assert world.ended == [11]
    world.gates["GPU-1"].set()
    await settle()


async def test_signals_after_a_fault_do_not_wait_for_the_daemon(world: World) -> None:
    world.gates["GPU-0"].clear()
    world.executor.submit([world.request(10, DEPARTURE)])
    await world.entered.get()
    world.executor.submit([world.request(11, FAULT, signal=Signals.SIGTERM)])
    async with asyncio.timeout(10):
        await world.events.get()
    assert (world.sent, world.ended) == ([(11, "SIGTERM")], [])
    world.gates["GPU-0"].set()
    await settle()


async def test_two_reasons_for_one_client_end_it_once_with_one_event(world: World) -> None:
    world.stays_listed = True
    world.executor.submit([world.request(10, VIOLATION), world.request(10, DEPARTURE), world.request(10, MAX_WAIT)])
    await settle()
    assert (world.ended, world.events.qsize()) == ([10], 1)
    assert [attempt for attempt in world.attempts if attempt[1]] == [(DEPARTURE, 1, False)]


@pytest.mark.parametrize("reason", [DEPARTURE, MAX_WAIT, VIOLATION, SHORTAGE])
async def test_every_reason_tries_again_what_failed_after_the_same_time(
    world: World, reason: TerminationReason
) -> None:
    world.refused = {10}
    request = world.request(10, reason)
    world.executor.submit([request])
    await settle()
    world.refused = set()
    world.now += RETRY_SECONDS - 0.1
    world.executor.submit([request])
    await settle()
    assert world.ended == []
    world.now += 0.2
    world.executor.submit([request])
    await settle()
    assert world.ended == [10]
    assert world.attempts == [(reason, 0, True), (reason, 1, False)]


@pytest.mark.parametrize("error", [OSError("no such link"), RuntimeError("a bug")], ids=["of the node", "a bug"])
async def test_what_an_error_left_undone_is_not_done_later_unasked(world: World, error: Exception) -> None:
    """By then the reason may be over: who still has one asks again."""
    world.broken = error
    world.executor.submit([world.request(10, VIOLATION), world.request(11, SHORTAGE)])
    with suppress(RuntimeError):
        await settle()
    world.broken = None
    world.now += RETRY_SECONDS + 0.1
    world.executor.submit([world.request(20, DEPARTURE)])
    await settle()
    assert world.ended == [20]


async def test_a_departure_does_not_wait_for_another_reasons_next_try(world: World) -> None:
    world.refused = {10}
    world.executor.submit([world.request(10, VIOLATION)])
    await settle()
    world.refused = set()
    world.executor.submit([world.request(10, DEPARTURE)])
    await settle()
    assert world.ended == [10]


async def test_a_signal_is_sent_once_unless_it_was_sent_before_its_reason(world: World) -> None:
    for since in (0.0, 0.0, 150.0):
        world.executor.submit([world.request(10, FAULT, signal=Signals.SIGTERM, since=since)])
        await settle()
        world.now += 100.0
    assert world.sent == [(10, "SIGTERM")] * 2


@pytest.mark.parametrize(
    ("listed", "error", "sent"),
    [([], None, [(10, "SIGTERM")]), ([10], None, []), ([], ControlTimeoutError("no answer"), [])],
    ids=["the daemon does not know it", "the daemon lists it", "the daemon does not answer"],
)
async def test_a_process_past_mps_is_signalled_if_the_daemon_does_not_list_it(
    world: World, listed: list[int], error: Exception | None, sent: list[tuple[int, str]]
) -> None:
    request = world.request(10, VIOLATION, signal=Signals.SIGTERM, past_mps=True)
    world.listed["GPU-0"], world.wedged = listed, error is not None
    world.executor.submit([request])
    await settle()
    assert world.sent == sent


async def test_a_signal_waits_for_the_end_of_the_clients_beside_it(world: World) -> None:
    beside = world.runs(11)
    request = world.request(10, VIOLATION, signal=Signals.SIGTERM, after=(beside,))
    world.executor.submit([request])
    await settle()
    assert world.sent == []
    world.now += RETRY_SECONDS + 0.1
    world.executor.submit([world.request(11, VIOLATION), request])
    await settle()
    world.now += RETRY_SECONDS + 0.1
    world.executor.submit([request])
    await settle()
    assert world.sent == [(10, "SIGTERM")]
