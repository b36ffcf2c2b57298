"""What is done about a GPU that is short of memory: events, ends through the MPS daemon, signals."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.observe.usage import Reading, Usage
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.agent.terminate.shortage import ShortageMonitor
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Borrower
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, Reason
from gpushare.mps.layout import gpu_dir
from gpushare.process import procfs
from tests.unit.agent.observed_pods import UUID, container_id, process, uid, usage
from tests.unit.agent.terminate.settled import settle

GPU_MIB = 80_000
GRANT = Grant("a", 25, 8192, 1, burst_mib=16384)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Daemon:
    """The control program: knows every client."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sound_servers(self) -> list[int]:
        return [500]

    def server_list(self) -> list[int]:
        return [500]

    def clients(self, server: int) -> list[int]:
        raise AssertionError("a borrower is a client of the daemon")

    def terminate_client(self, server: int, pid: int) -> bool:
        self.asked.append(pid)
        return True


class Events:
    def __init__(self) -> None:
        self.recorded: list[Event] = []

    def record(self, event: Event) -> None:
        self.recorded.append(event)

    def resolve(self, regarding: Object, reason: Reason, subject: str = "") -> None:
        raise AssertionError("every event here happened anew")

    def reasons(self) -> list[tuple[str, str]]:
        return [(event.regarding["name"], str(event.reason)) for event in self.recorded]


def share(**limits: Any) -> GpuShare:
    memory = {"default": "8Gi", "limits": {"max": "24Gi", "overcommitPercent": 200, **limits}}
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": {"perGpu": 4, "memory": memory}}})


class World:
    """One GPU of share a, and an agent that may be started anew."""

    def __init__(self, tmp_path: Path, proc: Path | None = None) -> None:
        self.root, self.proc = tmp_path / "run", proc or tmp_path / "proc"
        gpu_dir(self.root, UUID).path.mkdir(parents=True)
        self.now = 100.0
        self.daemon, self.events = Daemon(), Events()
        self.share = share(whenShort="Terminate")
        self.before: list[Borrower] = []
        self.start()

    def start(self) -> None:
        self.executor = TerminationExecutor(
            self.root, lambda _: self.daemon, self.events.record, lambda: self.now, self.proc
        )
        self.monitor = ShortageMonitor(self.executor, self.events, lambda: self.now, 10.0, 1.5)

    def runs(self, pid: int, started: int = 100) -> None:
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(started), "0"]))

    async def read(self, *usages: Usage, free: int = 1000, times: int = 2, seconds: float = 2.0) -> None:
        """Readings, and everything that follows from them."""
        for _ in range(times):
            self.now += seconds
            seen = Reading(UUID, "a", self.now, GPU_MIB, usages, free_mib=free)
            self.monitor.observe([seen], {UUID: "a"}, {}, {"a": self.share}, lambda: self.before, NOW)
            await settle()

    def note(self, reason: EventReason) -> str:
        return next(event for event in self.events.recorded if event.reason is reason).note


def client(number: int, memory_mib: int, **fields: Any) -> Usage:
    values = {"pod_uid": uid(number), "pod": f"pod-{number}", "container_id": container_id(number), "grant": GRANT}
    listed = fields.pop("processes", (process(number, memory_mib),))
    return usage(*listed, **values | fields)


BORROWER, OTHER = client(1, 20_000), client(2, 2192)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for pid in (1, 2):
        world.runs(pid)
    return world


async def test_a_borrower_gets_notice_with_figures_and_is_ended_by_the_daemon(world: World) -> None:
    await world.read(BORROWER, OTHER)
    assert world.events.reasons() == [("pod-1", "MemoryShort")]
    note = world.note(EventReason.MEMORY_SHORT)
    for part in (f"GPU {UUID} has 1000 MiB free", "6000 MiB reserved", "uses 20000 MiB", "11808 MiB above the 8192 MiB",
                 "ended in 30 s, at 2026-01-01T00:00:30Z"):  # fmt: skip
        assert part in note
    assert world.daemon.asked == []
    (listed,) = world.monitor.borrowers() or []
    assert (listed.pod, listed.ends_at) == ("pod-1", "2026-01-01T00:00:30Z")

    await world.read(BORROWER, OTHER, times=15)
    assert world.daemon.asked == [1]
    assert world.events.reasons() == [("pod-1", "MemoryShort"), ("pod-1", "ClientTerminated")]
    assert "whenShort: Terminate" in world.note(EventReason.CLIENT_TERMINATED)


async def test_the_default_policy_tells_the_borrower_and_ends_no_client(world: World) -> None:
    world.share = share()
    await world.read(BORROWER, OTHER, times=60)
    assert world.events.reasons() == [("pod-1", "MemoryShort")]
    assert "Nobody is ended (whenShort: Audit)" in world.note(EventReason.MEMORY_SHORT)
    assert world.daemon.asked == []
    (listed,) = world.monitor.borrowers() or []
    assert listed.ends_at is None
    assert list(world.monitor.short()) == [UUID]


async def test_memory_that_comes_back_withdraws_the_notice(world: World) -> None:
    await world.read(BORROWER, OTHER)
    await world.read(BORROWER, OTHER, free=7000, times=20)
    assert world.events.reasons() == [("pod-1", "MemoryShort"), ("pod-1", "MemorySufficient")]
    (listed,) = world.monitor.borrowers() or []
    assert listed.ends_at is None
    assert world.monitor.short() == {}


async def test_a_restarted_agent_gives_notice_anew_before_it_ends_a_borrower(world: World) -> None:
    await world.read(BORROWER, OTHER, times=10)
    world.start()
    await world.read(BORROWER, OTHER, times=10)
    assert world.daemon.asked == []
    await world.read(BORROWER, OTHER, times=10)
    assert world.daemon.asked == [1]


async def test_a_share_without_limits_has_neither_borrowers_nor_shortages(world: World) -> None:
    world.share = GpuShare.model_validate(
        {"metadata": {"name": "a"}, "spec": {"clients": {"perGpu": 4, "memory": {"default": "8Gi"}}}}
    )
    await world.read(BORROWER, OTHER, times=30)
    assert (world.events.recorded, world.monitor.borrowers(), world.monitor.latest) == ([], [], {})


async def test_readings_that_show_nearly_the_same_moment_decide_nothing(world: World) -> None:
    await world.read(BORROWER, OTHER, times=1)
    await world.read(BORROWER, OTHER, times=10, seconds=0.1)
    assert world.events.recorded == []


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """It ignores SIGTERM."""
    ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    yield child
    child.stdout.close()
    child.kill()
    child.wait()


async def test_a_lingering_process_is_signalled_after_its_contexts_were_ended(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    world = World(tmp_path, procfs.PROC)
    started = procfs.read_start_time(sleeper.pid)
    assert started is not None

    def lingering() -> Usage:
        listed = process(sleeper.pid, 20_000, started=started or 0)
        ended = world.executor.was_asked(UUID, listed)
        return client(1, 0, processes=(replace(listed, terminated=ended),))

    for _ in range(20):
        await world.read(lingering(), OTHER, times=1)
    assert world.daemon.asked == [sleeper.pid]
    assert ("pod-1", "ProcessEnded") not in world.events.reasons(), "its contexts were ended a moment ago"
    while sleeper.poll() is None and world.now < 200:
        await world.read(lingering(), OTHER, times=1)
        await asyncio.sleep(0.01)
    assert sleeper.wait(5) == -9
    signalled = [event.note for event in world.events.recorded if event.reason is EventReason.PROCESS_ENDED]
    assert [note.split()[1] for note in signalled] == ["SIGTERM", "SIGKILL"], "once each"
