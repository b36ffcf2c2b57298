"""Faulted clients: which are ended, when and by which signal, and which events report it."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.faulted import FaultedClientReaper, GpuFault, faults_of
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.api.gpushare import GpuShare
from gpushare.kube.events.event import Event
from gpushare.mps.wire import DaemonState
from gpushare.process.procfs import TICKS_PER_SECOND
from tests.unit.agent.departing_pods import Node, pod, uid
from tests.unit.agent.terminate.settled import settle

GPU = "GPU-0"
SINCE, TIMEOUT, GRACE = 1000.0, 300.0, 30.0
DUE = SINCE + TIMEOUT


SHARE = GpuShare.model_validate(
    {
        "metadata": {"name": "inference"},
        "spec": {"faultTimeout": "90s", "clients": {"perGpu": 8, "memory": {"default": "8Gi"}}},
    }
)
STATE = DaemonState(
    uuid=GPU,
    share="inference",
    heartbeat=99.0,
    reason=DaemonReason.FAULTED,
    fault_since=50.0,
    faulted_clients=[10],
)


@pytest.mark.parametrize(
    ("state", "shares", "faults"),
    [
        (STATE, {"inference": SHARE}, [GpuFault(GPU, "inference", 50.0, 90.0, (10,))]),
        (structs.replace(STATE, heartbeat=80.0), {"inference": SHARE}, []),
        (structs.replace(STATE, heartbeat=150.0), {"inference": SHARE}, []),
        (structs.replace(STATE, faulted_clients=[]), {"inference": SHARE}, []),
        (structs.replace(STATE, fault_since=None), {"inference": SHARE}, []),
        (STATE, {}, []),
    ],
    ids=[
        "a fault",
        "an old state",
        "one from the future",
        "no client is left",
        "no fault",
        "a share that is not known",
    ],
)
def test_a_fault_counts_by_a_fresh_state_and_has_its_shares_timeout(
    state: DaemonState, shares: dict[str, GpuShare], faults: list[GpuFault]
) -> None:
    assert faults_of({GPU: state}, shares, 100.0) == faults


class World(Node):
    """A GPU in FAULT; clients started at 500 s, and stay listed once the daemon has ended them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "proc")
        self.proc.mkdir()
        (root / GPU).mkdir()
        self.stays_listed = True
        self.now = DUE - 100
        self.events: list[Event] = []
        self.sent: list[tuple[int, str]] = []
        self.refusing = False
        self.silent = False
        """The supervisor says nothing new of the GPU."""
        self.since = SINCE
        self.clients: list[int] = []
        self.pods = {uid(1): pod(1)}
        self.pods[uid(1)]["spec"]["terminationGracePeriodSeconds"] = GRACE
        executor = TerminationExecutor(
            root, self.control, self.events.append, lambda: self.now, self.proc, send=self._send
        )
        self.reaper = FaultedClientReaper(
            "here", self.faults, lambda: self.pods, executor, self.events.append, lambda: self.now, self.proc
        )

    def faults(self) -> list[GpuFault]:
        clients = tuple(pid for pid in self.clients if (self.proc / str(pid)).exists() and not self.silent)
        return [GpuFault(GPU, "inference", self.since, TIMEOUT, clients)] if clients else []

    def faulted(self, pid: int, number: int = 1, started: float = 500.0) -> None:
        self.client(pid, number, started=int(started * TICKS_PER_SECOND))
        self.clients.append(pid)

    def gone(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    async def at(self, now: float) -> list[EventReason | Any]:
        """The events recorded by a scan at this time, without the warnings."""
        self.now, before = now, len(self.events)
        await settle(self.reaper.start_scans())
        return [event.reason for event in self.events[before:] if event.reason is not EventReason.CLIENT_FAULTED]

    def _send(self, process: Any, number: signal.Signals, _: Path) -> bool:
        if self.refusing:
            raise PermissionError(1, "Operation not permitted")
        self.sent.append((process.pid, number.name))
        return True


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_client_is_warned_at_once_and_left_alone_until_the_timeout(world: World) -> None:
    world.faulted(10)
    await world.at(SINCE + 1)
    [warning] = world.events
    assert (warning.reason, warning.regarding["uid"]) == (EventReason.CLIENT_FAULTED, uid(1))
    assert "its own or that of one of its neighbours" in warning.note
    assert "It is ended 300 s after the fault (faultTimeout of GpuShare inference)" in warning.note
    await world.at(DUE - 1)
    assert (world.ended, world.sent) == ([], [])


async def test_a_client_gets_sigterm_then_sigkill_and_no_terminate_client(world: World) -> None:
    world.faulted(10)
    assert await world.at(DUE) == [EventReason.PROCESS_ENDED]
    assert world.sent == [(10, "SIGTERM")]
    assert await world.at(DUE + GRACE - 1) == []
    await world.at(DUE + GRACE)
    assert world.sent == [(10, "SIGTERM"), (10, "SIGKILL")]
    assert world.ended == [], "terminate_client in FAULT hangs the daemon"


async def test_the_gpunode_gets_one_event_once_the_clients_have_ended(world: World) -> None:
    world.faulted(10)
    await world.at(DUE)
    world.gone(10)
    assert await world.at(DUE + 1) == [EventReason.FAULTED_CLIENTS_ENDED]
    assert world.events[-1].regarding == {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuNode", "name": "here"}
    assert await world.at(DUE + 2) == []
    assert world.sent == [(10, "SIGTERM")]


async def test_clients_that_end_by_themselves_after_a_fault_make_no_event(world: World) -> None:
    world.faulted(10)
    await world.at(DUE - 1)
    world.gone(10)
    assert await world.at(DUE + 1) == []
    assert (world.ended, world.sent) == ([], [])


async def test_a_client_that_lives_is_not_reported_as_ended_on_a_silent_gpu(world: World) -> None:
    world.faulted(10)
    await world.at(DUE)
    world.silent = True
    assert await world.at(DUE + 1) == []
    world.gone(10)
    assert await world.at(DUE + 2) == [EventReason.FAULTED_CLIENTS_ENDED]
    assert await world.at(DUE + 3) == []


async def test_a_sent_signal_is_remembered_while_the_gpu_is_silent(world: World) -> None:
    world.faulted(10)
    await world.at(DUE)
    world.silent = True
    await world.at(DUE + 1)
    world.silent = False
    await world.at(DUE + 2)
    assert world.sent == [(10, "SIGTERM")]
    await world.at(DUE + GRACE)
    assert world.sent == [(10, "SIGTERM"), (10, "SIGKILL")]


async def test_a_zombie_client_is_reported_as_ended(
    world: World,
) -> None:
    world.faulted(10)
    await world.at(DUE)
    stat = world.proc / "10" / "stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))
    assert await world.at(DUE + 1) == [], "the server lists it still"
    world.clients.clear()
    assert await world.at(DUE + 2) == [EventReason.FAULTED_CLIENTS_ENDED]
    assert world.sent == [(10, "SIGTERM")]


async def test_a_survivor_gets_sigterm_first_at_a_later_fault_too(world: World) -> None:
    world.faulted(10)
    await world.at(DUE)
    world.clients.clear()
    assert await world.at(DUE + GRACE) == []
    world.clients, world.since = [10], DUE + 100
    await world.at(world.since + TIMEOUT)
    assert world.sent == [(10, "SIGTERM")] * 2
    await world.at(world.since + TIMEOUT + GRACE)
    assert world.sent[2:] == [(10, "SIGKILL")]


async def test_a_process_that_is_younger_than_the_fault_is_left_alone(world: World) -> None:
    world.faulted(10, started=SINCE + 1)
    await world.at(DUE + 100)
    assert (world.ended, world.sent, world.events) == ([], [], [])


async def test_a_process_of_the_host_is_never_signalled(world: World) -> None:
    world.faulted(10, number=9)
    await world.at(DUE)
    await world.at(DUE + 1000)
    assert (world.ended, world.sent) == ([], [])


async def test_a_signal_that_the_kernel_refuses_is_logged_and_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.faulted(10)
    world.refusing = True
    await world.at(DUE)
    assert "process 10 cannot be signalled: Operation not permitted" in caplog.text
    world.refusing = False
    await world.at(DUE + 1)
    assert world.sent == [(10, "SIGTERM")]
