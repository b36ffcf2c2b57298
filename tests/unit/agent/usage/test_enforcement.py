"""What follows of findings: who is told, who is ended, and who never."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.process import processes
from gpushare.agent.termination.terminate import ClientTerminator
from gpushare.agent.usage.bypass import KILL_AFTER_SECONDS
from gpushare.agent.usage.enforcement import ViolationEnforcer
from gpushare.agent.usage.usage import Reading, Usage
from gpushare.agent.usage.violations import ViolationTracker
from gpushare.api.conditions import EventReason
from gpushare.kube.client import Object
from gpushare.kube.event_recorder import Event
from gpushare.mps.control import ControlError, ControlTimeoutError, NoDaemonError
from gpushare.mps.layout import gpu_dir
from tests.unit.agent.observed_pods import UUID, process, uid, usage

HOST: dict[str, Any] = {"pod_uid": "", "namespace": "", "pod": "", "container": "", "slot": False, "grant": None}


class Daemon:
    """The control program of one GPU."""

    def __init__(self) -> None:
        self.known: list[int] = []
        self.asked: list[int] = []
        self.error: ControlError | None = None

    def sound_servers(self) -> list[int]:
        if self.error:
            raise self.error
        return [500]

    def server_list(self) -> list[int]:
        return self.sound_servers()

    def clients(self, server: int) -> list[int]:
        return self.known

    def terminate_client(self, server: int, pid: int) -> bool:
        self.asked.append(pid)
        return pid in self.known


class Told:
    def __init__(self) -> None:
        self.news: list[Event] = []
        self.ended: list[EventReason] = []

    def tell(self, news: Event) -> None:
        self.news.append(news)

    def over(self, regarding: Object, reason: EventReason, subject: str = "") -> None:
        self.ended.append(reason)

    def reasons(self) -> list[str]:
        """Once each: an Announcer writes what is told again only once."""
        return list(dict.fromkeys(str(news.reason) for news in self.news))

    def first(self, reason: EventReason) -> Event:
        return next(news for news in self.news if news.reason is reason)


class World:
    """One GPU of share a, and an agent that may be started anew."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.proc = tmp_path / "run", tmp_path / "proc"
        gpu_dir(self.root, UUID).path.mkdir(parents=True)
        self.proc.mkdir()
        self.now = 100.0
        self.daemon, self.told = Daemon(), Told()
        self.start()

    def start(self) -> None:
        endings = ClientTerminator(self.root, lambda _: self.daemon, self.proc)
        self.enforcement = ViolationEnforcer(
            "n", endings, lambda _: self.daemon, self.told, lambda: self.now, self.proc
        )
        self.findings = ViolationTracker((), self.now)

    def runs(self, pid: int, started: int = 100) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(started), "0"]))

    async def read(self, *usages: Usage, times: int = 2, terminating: bool = True, seconds: float = 2.0) -> None:
        """Readings, and everything that follows of them."""
        for _ in range(times):
            self.now += seconds
            judgement = self.findings.judge(
                [Reading(UUID, "a", self.now, 143155, usages)], {UUID: "a"}, "2026-01-01T00:00:00Z"
            )
            self.enforcement.act(judgement, ["a"] if terminating else [])
            async with asyncio.timeout(10):
                await asyncio.gather(*(it for it in asyncio.all_tasks() if it.get_name().startswith("enforcement")))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_audit_tells_the_pod_both_figures_and_ends_nobody(world: World) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)), terminating=False)
    news = world.told.first(EventReason.MEMORY_ABOVE_GRANT)
    assert (news.regarding["kind"], news.regarding["name"], news.regarding["uid"]) == ("Pod", "pod-1", uid(1))
    assert (news.kind, news.subject) == ("Warning", "app")
    assert "9000 MiB" in news.note
    assert "8192 MiB" in news.note
    assert world.daemon.asked == []


async def test_terminate_ends_the_offender_through_the_daemon_and_tells_why(world: World) -> None:
    world.runs(11)
    world.runs(12)
    world.daemon.known = [11, 12]
    await world.read(usage(process(11, 9000)), usage(process(12, 500), pod_uid=uid(2), pod="pod-2"))
    assert world.daemon.asked == [11]
    assert world.told.reasons() == ["MemoryAboveGrant", "ClientTerminated"]
    note = world.told.first(EventReason.CLIENT_TERMINATED).note
    assert "process 11" in note
    assert "9000 MiB" in note
    assert "8192 MiB" in note


async def test_an_offender_that_lingers_is_asked_to_end_once(world: World) -> None:
    """NVML lists it, with its memory, until its process ends."""
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)), times=10)
    assert world.daemon.asked == [11]


async def test_a_restarted_agent_asks_for_nobody_a_second_time(world: World) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)))
    world.start()
    await world.read(usage(process(11, 9000)), times=4)
    assert world.daemon.asked == [11]
    assert len([news for news in world.told.news if news.reason is EventReason.CLIENT_TERMINATED]) == 1


async def test_the_process_that_comes_after_it_is_ended_too(world: World) -> None:
    world.daemon.known = [11, 12]
    world.runs(11)
    await world.read(usage(process(11, 9000)))
    world.runs(12)
    await world.read(usage(process(12, 9000)))
    assert world.daemon.asked == [11, 12]


async def test_a_container_with_too_many_processes_is_ended_as_a_whole_its_main_process_last(world: World) -> None:
    for pid in (11, 12, 13):
        world.runs(pid, started=pid)
    world.daemon.known = [11, 12, 13]
    await world.read(usage(*(process(pid, 100, started=pid) for pid in (11, 12, 13))))
    assert world.daemon.asked == [13, 12, 11]


async def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone(world: World) -> None:
    world.runs(11, started=999)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000, started=100)))
    assert world.daemon.asked == []


async def test_a_daemon_that_does_not_answer_is_asked_again_later(world: World) -> None:
    world.runs(11)
    world.daemon.known = [11]
    world.daemon.error = ControlTimeoutError("no answer")
    await world.read(usage(process(11, 9000)), times=3)
    assert world.daemon.asked == []
    world.daemon.error = None
    await world.read(usage(process(11, 9000)))
    assert world.daemon.asked == [11]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        pytest.param(usage(process(11, 500), **HOST), EventReason.NO_GRANT, id="a client of the host"),
        pytest.param(
            usage(process(11, 500), slot=False, grant=None), EventReason.NO_GRANT, id="a client of a pod without a slot"
        ),
        pytest.param(
            usage(process(11, 500, mps=False), slot=False, grant=None),
            EventReason.NOT_AN_MPS_CLIENT,
            id="past MPS, a pod without a slot",
        ),
        pytest.param(
            usage(process(11, 500, mps=False), **HOST), EventReason.NOT_AN_MPS_CLIENT, id="past MPS, of the host"
        ),
        pytest.param(
            usage(process(11, 50_000), by_default=True), EventReason.MEMORY_ABOVE_GRANT, id="a grant that is assumed"
        ),
    ],
)
async def test_these_are_told_and_never_ended(world: World, case: Usage, reason: EventReason) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(case, times=30)
    assert world.told.reasons() == [reason]
    assert world.daemon.asked == []


async def test_a_process_of_the_host_is_told_at_the_nodes_own_object(world: World) -> None:
    world.runs(11)
    await world.read(usage(process(11, 500, mps=False), **HOST))
    regarding = world.told.first(EventReason.NOT_AN_MPS_CLIENT).regarding
    assert (regarding["kind"], regarding["name"]) == ("GpuNode", "n")


async def test_that_a_finding_holds_no_more_makes_its_return_news(world: World) -> None:
    world.runs(11)
    await world.read(usage(process(11, 9000)), terminating=False)
    await world.read(usage(process(11, 100)), seconds=10.0, terminating=False)
    assert world.told.ended == [EventReason.MEMORY_ABOVE_GRANT]


class Stray:
    """A real process that bypasses MPS, as far as NVML tells."""

    def __init__(self, stubborn: bool) -> None:
        setup = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        program = f"{setup}import sys; print('up', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        started = processes.read_start_time(self.process.pid)
        assert started is not None
        self.usage = usage(process(self.process.pid, 500, mps=False, started=started))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def stray(world: World) -> Iterator[Stray]:
    world.proc.rmdir()
    world.proc.symlink_to("/proc")
    stray = Stray(stubborn=False)
    yield stray
    stray.close()


@pytest.fixture
def stubborn(world: World) -> Iterator[Stray]:
    world.proc.rmdir()
    world.proc.symlink_to("/proc")
    stray = Stray(stubborn=True)
    yield stray
    stray.close()


async def test_a_process_past_mps_gets_sigterm(world: World, stray: Stray) -> None:
    await world.read(stray.usage)
    assert stray.process.wait(10) == -15
    assert world.told.reasons() == ["NotAnMpsClient", "ProcessEnded"]
    assert "SIGTERM" in world.told.first(EventReason.PROCESS_ENDED).note
    assert world.daemon.asked == []


async def test_before_a_signal_the_mps_clients_of_its_container_are_ended(world: World, stray: Stray) -> None:
    client = Stray(stubborn=False)
    listed = process(client.process.pid, 500, started=client.usage.listed[0].started)
    await world.read(stray.usage, usage(listed))
    assert stray.process.poll() is None
    assert world.daemon.asked == [listed.pid]
    world.daemon.known = [listed.pid]
    await world.read(stray.usage, usage(listed), times=1)
    assert world.daemon.asked == [listed.pid] * 2
    assert stray.process.wait(10) == -15
    client.close()


async def test_one_that_ignores_sigterm_gets_sigkill_later(world: World, stubborn: Stray) -> None:
    await world.read(stubborn.usage, times=3)
    assert stubborn.process.poll() is None
    await world.read(stubborn.usage, times=1, seconds=KILL_AFTER_SECONDS)
    assert stubborn.process.wait(10) == -9


async def test_audit_leaves_a_process_past_mps_alone(world: World, stray: Stray) -> None:
    await world.read(stray.usage, times=5, terminating=False)
    assert stray.process.poll() is None


async def test_no_signal_reaches_a_client_that_the_daemon_knows(world: World, stray: Stray) -> None:
    """An NVML that does not tell MPS clients apart must not end them all."""
    world.daemon.known = [stray.process.pid]
    await world.read(stray.usage, times=5)
    assert stray.process.poll() is None


async def test_no_signal_while_the_daemon_cannot_say_who_its_clients_are(world: World, stray: Stray) -> None:
    world.daemon.error = ControlTimeoutError("no answer")
    await world.read(stray.usage, times=5)
    assert stray.process.poll() is None


async def test_without_a_daemon_nobody_is_its_client(world: World, stray: Stray) -> None:
    world.daemon.error = NoDaemonError("no daemon")
    await world.read(stray.usage)
    assert stray.process.wait(10) == -15


async def test_no_signal_reaches_a_later_process_of_the_same_pid(world: World, stray: Stray) -> None:
    await world.read(usage(process(stray.process.pid, 500, mps=False, started=1)), times=5)
    assert stray.process.poll() is None
