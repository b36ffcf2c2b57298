"""The first process of a container, which starts its work again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.process.restarts import MOST_SOON, PAUSE_SECONDS

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from gpushare.process.restarts import Restarts, keep_running
started = Path(sys.argv[1])

def work(restarts: Restarts) -> int:
    with started.open("a") as file:
        print(os.getpid(), time.monotonic(), restarts.count, restarts.last_end, file=file)
    {work}

sys.exit(keep_running(work))
"""
WAITS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); time.sleep(60); return 0"


class Program:
    def __init__(self, path: Path, work: str) -> None:
        self._starts = path / "starts"
        arguments = [sys.executable, "-c", PROGRAM.format(work=work), str(self._starts)]
        self.process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)

    @property
    def starts(self) -> list[list[str]]:
        """PID, time, number of restarts and last end of each start."""
        lines = self._starts.read_text().splitlines() if self._starts.exists() else []
        return [line.split(" ", 3) for line in lines]

    def wait_starts(self, number: int) -> list[str]:
        wait_until(lambda: len(self.starts) >= number)
        return self.starts[-1]


def wait_until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@contextmanager
def program(path: Path, work: str = WAITS) -> Iterator[Program]:
    running = Program(path, work)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def test_a_work_that_is_killed_is_started_again_at_once_and_told_so(tmp_path: Path) -> None:
    with program(tmp_path) as running:
        for number in range(1, 4):
            pid, _, count, last = running.wait_starts(number)
            assert (int(count), last) == (number - 1, "was killed by signal 9" if number > 1 else "")
            os.kill(int(pid), signal.SIGKILL)
        running.wait_starts(4)
        assert running.process.poll() is None


def test_a_signal_to_end_is_passed_on_and_so_is_the_exit_code(tmp_path: Path) -> None:
    with program(tmp_path) as running:
        running.wait_starts(1)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 7
        assert len(running.starts) == 1


def test_a_work_that_ends_again_and_again_is_given_up_with_its_exit_code(tmp_path: Path) -> None:
    with program(tmp_path, "return 3") as running:
        assert running.process.wait(30) == 3
        times = [float(start[1]) for start in running.starts]
        assert len(times) == MOST_SOON + 1
        assert times[-1] - times[0] > MOST_SOON * PAUSE_SECONDS * 0.9


def test_a_work_that_raises_is_told_with_its_traceback(tmp_path: Path) -> None:
    with program(tmp_path, "raise RuntimeError('broken')") as running:
        _, printed = running.process.communicate(timeout=30)
        assert "RuntimeError: broken" in printed
        assert running.process.returncode == 1


def test_no_work_outlives_its_first_process(tmp_path: Path) -> None:
    with program(tmp_path) as running:
        pid = int(running.wait_starts(1)[0])
        running.process.kill()
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
