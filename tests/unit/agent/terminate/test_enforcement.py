"""Findings become events, and under `enforcement: Terminate` the end of processes: which ones, how, and which never."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.observe.usage import ListedClients, ListedProcess, Reading, Usage
from gpushare.agent.observe.violations import KEPT_SECONDS, ViolationTracker
from gpushare.agent.terminate.enforcement import KILL_AFTER_SECONDS, ViolationEnforcer
from gpushare.agent.terminate.executor import TerminationExecutor
from gpushare.api.conditions import EventReason
from gpushare.kube.client import Object
from gpushare.kube.events.event import Event, Reason
from gpushare.mps.control import ControlError, ControlTimeoutError, NoDaemonError
from gpushare.mps.layout import gpu_dir
from gpushare.process import procfs
from tests.unit.agent.observed_pods import UUID, process, uid, usage
from tests.unit.agent.terminate.settled import settle

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


class Events:
    """The events that were recorded or resolved."""

    def __init__(self) -> None:
        self.recorded: list[Event] = []
        self.resolved: list[Reason] = []

    def record(self, event: Event) -> None:
        self.recorded.append(event)

    def resolve(self, regarding: Object, reason: Reason, subject: str = "") -> None:
        self.resolved.append(reason)

    def reasons(self) -> list[str]:
        """Each reason once: an EventRecorder writes repeated ones only once."""
        return list(dict.fromkeys(str(event.reason) for event in self.recorded))

    def first(self, reason: EventReason) -> Event:
        return next(event for event in self.recorded if event.reason is reason)


class World:
    """One GPU of share a, and an agent that may be started anew."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.proc = tmp_path / "run", tmp_path / "proc"
        gpu_dir(self.root, UUID).path.mkdir(parents=True)
        self.proc.mkdir()
        self.now = 100.0
        self.daemon, self.events = Daemon(), Events()
        self.start()

    def start(self) -> None:
        executor = TerminationExecutor(
            self.root, lambda _: self.daemon, self.events.record, lambda: self.now, self.proc
        )
        self.enforcer = ViolationEnforcer("n", executor, self.events, lambda: self.now)
        self.tracker = ViolationTracker((), self.now, 10.0)

    def runs(self, pid: int, started: int = 100) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(started), "0"]))

    async def read(
        self,
        *usages: Usage,
        times: int = 2,
        terminating: bool = True,
        seconds: float = 2.0,
        served: ListedClients | None = None,
    ) -> None:
        """Readings, and everything that follows from them."""
        for _ in range(times):
            self.now += seconds
            judgement = self.tracker.judge(
                [Reading(UUID, "a", self.now, 143155, usages, served=served)], {UUID: "a"}, "2026-01-01T00:00:00Z"
            )
            self.enforcer.enforce(judgement, ["a"] if terminating else [])
            await settle()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_audit_records_both_figures_on_the_pod_and_ends_no_process(world: World) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)), terminating=False)
    event = world.events.first(EventReason.MEMORY_ABOVE_GRANT)
    assert (event.regarding["kind"], event.regarding["name"], event.regarding["uid"]) == ("Pod", "pod-1", uid(1))
    assert (event.type, event.subject) == ("Warning", "app")
    assert "9000 MiB" in event.note
    assert "8192 MiB" in event.note
    assert world.daemon.asked == []


async def test_who_computes_without_a_place_is_ended_under_audit_too(world: World) -> None:
    world.runs(11)
    world.runs(12)
    world.daemon.known = [11, 12]
    served = ListedClients({11: 1, 12: 1}, without_place=frozenset({(11, 100)}))
    beside = usage(process(12, 500), pod_uid=uid(2), pod="pod-2")
    await world.read(usage(process(11, 500)), beside, terminating=False, served=served)
    assert world.daemon.asked == [11]
    assert world.events.reasons() == ["ComputesWithoutPlace", "ClientTerminated"]
    note = world.events.first(EventReason.CLIENT_TERMINATED).note
    assert "as GpuShare a says (clients.queue)" in note
    assert "no place there, while others wait for one: it did not wait" in note


async def test_terminate_ends_the_process_by_the_daemon_and_an_event_says_why(world: World) -> None:
    world.runs(11)
    world.runs(12)
    world.daemon.known = [11, 12]
    await world.read(usage(process(11, 9000)), usage(process(12, 500), pod_uid=uid(2), pod="pod-2"))
    assert world.daemon.asked == [11]
    assert world.events.reasons() == ["MemoryAboveGrant", "ClientTerminated"]
    note = world.events.first(EventReason.CLIENT_TERMINATED).note
    assert "process 11" in note
    assert "9000 MiB" in note
    assert "8192 MiB" in note


async def test_a_process_that_goes_on_without_its_contexts_is_asked_for_once(world: World) -> None:
    """NVML lists it, with its memory, until its process ends."""
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)), times=10)
    assert world.daemon.asked == [11]


async def test_a_restarted_agent_asks_for_no_process_a_second_time(world: World) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(usage(process(11, 9000)))
    world.start()
    await world.read(usage(process(11, 9000)), times=4)
    assert world.daemon.asked == [11]
    assert len([event for event in world.events.recorded if event.reason is EventReason.CLIENT_TERMINATED]) == 1


async def test_the_next_process_of_the_container_is_ended_too(world: World) -> None:
    world.daemon.known = [11, 12]
    world.runs(11)
    await world.read(usage(process(11, 9000)))
    world.runs(12)
    await world.read(usage(process(12, 9000)))
    assert world.daemon.asked == [11, 12]


async def test_a_container_with_too_many_processes_ends_its_main_process_last(world: World) -> None:
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
async def test_processes_without_a_certain_grant_are_reported_and_never_ended(
    world: World, case: Usage, reason: EventReason
) -> None:
    world.runs(11)
    world.daemon.known = [11]
    await world.read(case, times=30)
    assert world.events.reasons() == [reason]
    assert world.daemon.asked == []


async def test_a_process_of_the_host_is_reported_on_the_gpunode(world: World) -> None:
    world.runs(11)
    await world.read(usage(process(11, 500, mps=False), **HOST))
    regarding = world.events.first(EventReason.NOT_AN_MPS_CLIENT).regarding
    assert (regarding["kind"], regarding["name"]) == ("GpuNode", "n")


async def test_a_finding_that_comes_back_is_a_new_occurrence(world: World) -> None:
    world.runs(11)
    await world.read(usage(process(11, 9000)), terminating=False)
    await world.read(usage(process(11, 100)), seconds=10.0, terminating=False)
    assert world.events.resolved == [EventReason.MEMORY_ABOVE_GRANT]


class RealProcess:
    """A real process; `usage` shows it as one that NVML lists past MPS, `client` as an MPS client."""

    def __init__(self, stubborn: bool) -> None:
        setup = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        program = f"{setup}import sys; print('up', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        started = procfs.read_start_time(self.process.pid)
        assert started is not None
        self.usage = usage(process(self.process.pid, 500, mps=False, started=started))
        self.client = process(self.process.pid, 9000, started=started)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def non_mps(world: World) -> Iterator[RealProcess]:
    world.proc.rmdir()
    world.proc.symlink_to("/proc")
    process = RealProcess(stubborn=False)
    yield process
    process.close()


@pytest.fixture
def stubborn(world: World) -> Iterator[RealProcess]:
    world.proc.rmdir()
    world.proc.symlink_to("/proc")
    process = RealProcess(stubborn=True)
    yield process
    process.close()


async def test_a_process_past_mps_gets_sigterm(world: World, non_mps: RealProcess) -> None:
    await world.read(non_mps.usage)
    assert non_mps.process.wait(10) == -15
    assert world.events.reasons() == ["NotAnMpsClient", "ProcessEnded"]
    assert "SIGTERM" in world.events.first(EventReason.PROCESS_ENDED).note
    assert world.daemon.asked == []


async def test_mps_clients_of_a_container_are_ended_before_its_signal(world: World, non_mps: RealProcess) -> None:
    client = RealProcess(stubborn=False)
    listed = process(client.process.pid, 500, started=client.usage.processes[0].started)
    await world.read(non_mps.usage, usage(listed))
    assert non_mps.process.poll() is None
    assert world.daemon.asked == [listed.pid]
    world.daemon.known = [listed.pid]
    await world.read(non_mps.usage, usage(listed), times=1)
    assert world.daemon.asked == [listed.pid] * 2
    assert non_mps.process.wait(10) == -15
    client.close()


async def test_a_process_that_ignores_sigterm_gets_sigkill_later(world: World, stubborn: RealProcess) -> None:
    await world.read(stubborn.usage, times=3)
    assert stubborn.process.poll() is None
    await world.read(stubborn.usage, times=1, seconds=KILL_AFTER_SECONDS)
    assert stubborn.process.wait(10) == -9


async def test_audit_leaves_a_process_past_mps_alone(world: World, non_mps: RealProcess) -> None:
    await world.read(non_mps.usage, times=5, terminating=False)
    assert non_mps.process.poll() is None


async def test_no_signal_reaches_a_client_that_the_daemon_knows(world: World, non_mps: RealProcess) -> None:
    """An NVML that does not tell MPS clients apart must not end them all."""
    world.daemon.known = [non_mps.process.pid]
    await world.read(non_mps.usage, times=5)
    assert non_mps.process.poll() is None


async def test_no_signal_is_sent_while_the_daemon_does_not_list_its_clients(world: World, non_mps: RealProcess) -> None:
    world.daemon.error = ControlTimeoutError("no answer")
    await world.read(non_mps.usage, times=5)
    assert non_mps.process.poll() is None


async def test_without_a_daemon_no_process_is_its_client(world: World, non_mps: RealProcess) -> None:
    world.daemon.error = NoDaemonError("no daemon")
    await world.read(non_mps.usage)
    assert non_mps.process.wait(10) == -15


async def test_no_signal_reaches_a_later_process_of_the_same_pid(world: World, non_mps: RealProcess) -> None:
    await world.read(usage(process(non_mps.process.pid, 500, mps=False, started=1)), times=5)
    assert non_mps.process.poll() is None


async def keep(world: World, kept: ListedProcess, seconds: float = KEPT_SECONDS + 2) -> None:
    """`kept` is ended for its memory, and goes on with it for `seconds`."""
    world.daemon.known = [kept.pid]
    await world.read(usage(kept))
    await world.read(usage(replace(kept, terminated=True)), times=int(seconds) // 2)


async def test_a_process_that_keeps_its_memory_after_its_end_is_signalled(world: World, non_mps: RealProcess) -> None:
    await keep(world, non_mps.client)
    assert non_mps.process.wait(10) == -15
    assert world.daemon.asked == [non_mps.process.pid]
    assert world.events.reasons() == ["MemoryAboveGrant", "ClientTerminated", "ProcessEnded"]
    note = world.events.first(EventReason.PROCESS_ENDED).note
    assert "Sent SIGTERM" in note
    assert "still uses 9000 MiB" in note
    assert "its grant is 8192 MiB" in note


async def test_one_that_keeps_its_memory_and_ignores_sigterm_is_killed(world: World, stubborn: RealProcess) -> None:
    await keep(world, stubborn.client)
    ended = usage(replace(stubborn.client, terminated=True))
    await world.read(ended, times=int(KILL_AFTER_SECONDS) // 2 - 1)
    assert stubborn.process.poll() is None
    await world.read(ended, times=1)
    assert stubborn.process.wait(10) == -9


async def test_no_signal_comes_before_the_time_or_after_a_free(world: World, non_mps: RealProcess) -> None:
    await keep(world, non_mps.client, seconds=KEPT_SECONDS - 2)
    freed = usage(replace(non_mps.client, memory_mib=400, terminated=True))
    await world.read(freed, times=20)
    assert non_mps.process.poll() is None


async def test_audit_signals_nobody_who_keeps_memory(world: World, non_mps: RealProcess) -> None:
    await world.read(usage(replace(non_mps.client, terminated=True)), times=20, terminating=False)
    assert non_mps.process.poll() is None


async def test_no_signal_comes_before_the_end_of_the_clients_beside(world: World, non_mps: RealProcess) -> None:
    """It may end their container's main process, and so kill them in mid-kernel."""
    beside = RealProcess(stubborn=False)
    await keep(world, non_mps.client, seconds=KEPT_SECONDS)
    both = usage(replace(non_mps.client, terminated=True), beside.client)
    await world.read(both, times=5)
    assert non_mps.process.poll() is None
    world.daemon.known.append(beside.process.pid)
    await world.read(both)
    assert non_mps.process.wait(10) == -15
    assert beside.process.poll() is None
    beside.close()
