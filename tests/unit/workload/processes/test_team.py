"""Worker processes: they start together, every end of one is reported, and none of them stays behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpushare_workload.backend.interface import GpuError, OutOfMemoryError
from gpushare_workload.events import WrongError
from gpushare_workload.processes.outcomes import Died, Done, Hung, Refused, WorkerError
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.processes.team import EXIT_SECONDS, GRACE_SECONDS, LAST_SECONDS, Team, together
from localcluster.paths import REPOSITORY
from tests.unit.workload.conftest import wait_gone
from tests.unit.workload.processes import targets

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
SECONDS = 60.0
Program = Callable[[str], tuple[subprocess.Popen[str], list[int]]]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def beside_another(target: Any, *arguments: Any) -> None:
    with Team(Stop()) as team:
        team.start(targets.until_asked)
        team.start(target, *arguments)
        team.results(SECONDS)


def test_results_come_in_the_order_of_the_start() -> None:
    with Team(Stop()) as team:
        for number in range(4):
            team.start(targets.square, number)
        assert team.results(SECONDS) == [0, 1, 4, 9]


def test_all_pass_the_barrier_together_and_none_before_the_last_reached_it() -> None:
    passed = together(targets.moment, [0.0, 0.1, 0.05], stop=Stop(), seconds=SECONDS)
    assert max(reached for reached, _ in passed) <= min(after for _, after in passed)
    assert max(after for _, after in passed) - min(after for _, after in passed) < 5


def test_the_start_of_pods_is_a_wall_clock_time() -> None:
    with Team(Stop()) as team:
        team.start(targets.announced)
        team.receive(SECONDS)
        at = time.time() + 0.5
        team.go(at=at)
        assert 0 <= time.time() - at < 5
        team.results(SECONDS)


def test_a_common_start_that_has_passed_is_refused_and_nobody_starts() -> None:
    with Team(Stop()) as team:
        team.start(targets.moment, 0.0)
        with pytest.raises(ValueError, match=r"passed .* s before this process was ready"):
            team.go(at=time.time() - 1)


def test_messages_to_all_or_some_are_answered_in_the_order_asked() -> None:
    with Team(Stop()) as team:
        for _ in range(3):
            team.start(targets.answer_until_none)
        team.send_all("all")
        assert team.gather(SECONDS) == [(0, "all"), (1, "all"), (2, "all")]
        assert team.ask({2: "late", 0: "early"}, SECONDS) == {2: (2, "late"), 0: (0, "early")}
        assert team.finish(SECONDS) == [2, 1, 2]


def test_a_worker_without_an_answer_is_an_error_within_the_time_of_all() -> None:
    with Team(Stop()) as team:
        team.start(targets.answer_until_none)
        team.start(targets.answer_until_none)
        team.send(0, "to one alone")
        with pytest.raises(WorkerError, match=r"no message of any worker within .* worker 0 .*, worker 1"):
            team.gather(2.0)


def test_the_environment_is_set_before_the_target_runs() -> None:
    with Team(Stop()) as team:
        team.start(targets.environment, "CUDA_VISIBLE_DEVICES", environment={"CUDA_VISIBLE_DEVICES": "3"})
        assert team.results(SECONDS) == ["3"]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("gpu", GpuError, r"CUDA error 46: worker 1 \(pid \d+\): all devices are busy"),
        ("memory", OutOfMemoryError, "CUDA error 2"),
        ("wrong", WrongError, r"worker 1 \(pid \d+\): 1 is not 2"),
        ("argument", ValueError, "--size 0: must be at least 1"),
        ("other", WorkerError, r"worker 1 \(pid \d+\) failed: ZeroDivisionError: division by zero\n.*raise_error"),
    ],
)
def test_a_workers_error_is_raised_here_by_its_kind_and_names_the_worker(
    kind: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        beside_another(targets.raise_error, kind)


@pytest.mark.parametrize(
    ("target", "argument", "words"),
    [
        (targets.die, signal.SIGKILL, "was ended by SIGKILL before it gave a result"),
        (targets.die, signal.SIGSEGV, "was ended by SIGSEGV before it gave a result"),
        (targets.leave, 7, "exited with code 7 before it gave a result"),
    ],
    ids=["killed", "crashed", "exited"],
)
def test_a_worker_that_dies_is_an_error_that_says_how(target: Any, argument: int, words: str) -> None:
    with pytest.raises(WorkerError, match=words):
        beside_another(target, argument)


def test_a_worker_that_dies_before_the_barrier_does_not_hold_up_the_others() -> None:
    with Team(Stop()) as team:
        team.start(targets.moment, 0.0)
        team.start(targets.die, signal.SIGKILL)
        assert team.go(every_member=False) == 1
        first, second = team.outcomes(SECONDS)
    assert isinstance(first, Done)
    assert second == Died(-signal.SIGKILL, on_gpu=False)


def test_outcomes_have_refusals_as_values() -> None:
    with Team(Stop()) as team:
        team.start(targets.raise_error, "gpu")
        assert team.outcomes(SECONDS) == [Refused(46, "all devices are busy", memory=False)]


def test_a_worker_that_hangs_is_an_error_within_the_time_limit() -> None:
    with Team(Stop()) as team:
        team.start(targets.deaf, False)
        team.receive(SECONDS)
        began = time.monotonic()
        with pytest.raises(WorkerError, match=r"no result within 0.2 s: worker 0 \(pid \d+\) in state S"):
            team.results(0.2)
        assert time.monotonic() - began < SECONDS / 2
        team.end(0)


def test_a_stopped_worker_is_reported_as_stopped() -> None:
    with Team(Stop()) as team:
        team.start(targets.echo)
        team.start(targets.until_asked)
        _, pid = team.receive(SECONDS)
        os.kill(pid, signal.SIGSTOP)
        assert team.outcomes(0.2)[1] == Hung(0.2, "T", on_gpu=False)
        team.end(0)


def test_a_message_to_a_stopped_worker_is_an_error_and_no_hang() -> None:
    with Team(Stop(), patience=1) as team:
        team.start(targets.until_asked)
        _, pid = team.receive(SECONDS)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match="took no message for 1 s: state T"):
            team.send(0, bytes(10_000_000))
        team.end(0)


def test_messages_go_back_and_forth() -> None:
    with Team(Stop()) as team:
        team.start(targets.echo)
        for number in range(3):
            team.send(0, number)
            assert team.receive(SECONDS) == (0, number)


def test_a_result_that_cannot_be_sent_is_an_error_that_names_the_worker() -> None:
    with pytest.raises(WorkerError, match=r"worker 1 \(pid \d+\) failed: .*lambda"):
        beside_another(targets.not_for_pipes)


def test_a_large_result_crosses_whole_and_does_not_hold_up_the_end() -> None:
    with Team(Stop()) as team:
        team.start(targets.large, 5_000_000)
        assert len(team.results(SECONDS)[0]) == 5_000_000
    with Team(Stop()) as team:
        team.start(targets.large, 5_000_000)
        team.receive(SECONDS)
        began = time.monotonic()
    assert time.monotonic() - began < EXIT_SECONDS


def test_workers_share_an_array_that_has_no_name() -> None:
    shared = SharedArray.of(np.zeros(2))
    with Team(Stop()) as team:
        team.start(targets.add_to, shared, 1.5)
        team.start(targets.add_to, shared, 2.5)
        team.results(SECONDS)
    assert shared.array.tolist() == [1.5, 2.5]


def test_an_array_in_a_message_is_refused() -> None:
    with Team(Stop()) as team:
        team.start(targets.echo)
        with pytest.raises(TypeError, match="only as an argument of its target"):
            team.send(0, SharedArray((1,)))


def test_no_descriptor_is_left_open() -> None:
    def once() -> None:
        shared = SharedArray((10,))
        with Team(Stop()) as team:
            team.start(targets.add_to, shared, 1.0)
            team.results(SECONDS)

    once()
    before = descriptors()
    once()
    assert descriptors() == before


def test_asked_to_end_nothing_more_is_started() -> None:
    stop = Stop()
    stop.ask()
    with Team(stop) as team, pytest.raises(StoppedError):
        team.start(targets.square, 1)


@pytest.fixture
def program() -> Iterator[Program]:
    """Starts targets.py as a program in a process group of its own; returns it and its workers' PIDs."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str) -> tuple[subprocess.Popen[str], list[int]]:
        command = [sys.executable, "-m", "tests.unit.workload.processes.targets", kind]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, [int(pid) for pid in process.stdout.readline().split()]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("good", ""), ("deaf", ""), ("deaf-on-gpu", "uses the GPU: killed, which can end its neighbours")],
)
def test_a_signal_ends_the_program_and_its_workers_soon(
    program: Program, number: signal.Signals, kind: str, words: str
) -> None:
    process, pids = program(kind)
    assert len(pids) == 2
    # SIGINT goes to the whole group, as from a terminal: the workers must leave it to their parent.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    assert process.stdout is not None
    # The last line comes after the end of the workers; the interpreter's own exit does not count.
    out = process.stdout.read()
    # Two seconds, on a machine that has time for it; what is deaf would take 60.
    assert GRACE_SECONDS + LAST_SECONDS < 2
    assert float(out.split()[-1]) < 20
    _, error = process.communicate(timeout=10)
    assert "asked to end before the work was done" in out
    assert "Traceback" not in error
    assert words in error if words else not error
    wait_gone(pids)


@pytest.mark.parametrize("kind", ["good", "deaf"])
def test_workers_end_by_themselves_when_their_parent_is_killed(program: Program, kind: str) -> None:
    process, pids = program(kind)
    process.kill()
    process.wait(timeout=10)
    wait_gone(pids)
