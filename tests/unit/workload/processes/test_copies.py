"""Copies of a program: all of them end, whatever they do about it, and what they print is read."""

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.kubectl.rules.trial.printed import FigureReader, PrintedFigures
from gpushare_workload.processes.copies import TAIL_LINES, CopyGroup
from gpushare_workload.processes.stopping import Stop, StoppedError
from tests.unit.workload.conftest import running

Write = Callable[[str], tuple[str, ...]]
PRINTED = PrintedFigures(FigureReader(field="rate"), latency=FigureReader(field="ms"))
SECONDS = 30.0

pytestmark = pytest.mark.usefixtures("nothing_left")


def group(stop: Stop | None = None, end_seconds: float = 10.0) -> CopyGroup:
    return CopyGroup(PRINTED, stop or Stop(), end_seconds)


def until(copies: CopyGroup, done: Callable[[], bool]) -> None:
    assert copies.pump(time.monotonic() + SECONDS, done)


def test_figures_of_each_copy_are_read_from_standard_output_alone(script: Write) -> None:
    program = script("figure(rate=int(os.environ['GPUSHARE_COPY']) + 1)\nprint('{\"rate\": 9}', file=sys.stderr)\n")
    with group() as copies:
        for _ in range(2):
            copies.start(0, program, os.environ)
        until(copies, lambda: all(copy.ended is not None for copy in copies.copies))
        copies.pump(time.monotonic() + 0.3)
        assert [[line.rates for line in copy.lines] for copy in copies.copies] == [[(1.0,)], [(2.0,)]]
        assert '{"rate": 9}' in copies.copies[0].last_lines()


def test_a_program_that_ends_on_sigterm_can_finish_its_step(script: Write, tmp_path: Path) -> None:
    program = script(
        f"def end(*_):\n    open({str(tmp_path / 'finished')!r}, 'w').close()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nforever()\n"
    )
    with group() as copies:
        copies.start(0, program, os.environ)
        until(copies, lambda: bool(copies.copies[0].lines))
    assert (tmp_path / "finished").exists()
    assert copies.copies[0].code == 0


@pytest.mark.parametrize(
    "text",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nforever()\n",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfigure(rate=1)\nos.kill(os.getpid(), signal.SIGSTOP)\n",
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)', __file__])\n"
        "time.sleep(0.3)\nfigure(rate=1)\nsys.exit(0)\n",
    ],
    ids=["ignores SIGTERM", "is stopped", "leaves a child of its group that ignores SIGTERM"],
)
def test_copies_that_do_not_end_are_killed_with_their_group(script: Write, text: str, tmp_path: Path) -> None:
    with group(end_seconds=0.3) as copies:
        copies.start(0, script(text), os.environ)
        until(copies, lambda: bool(copies.copies[0].lines))
        assert running(tmp_path)
    assert running(tmp_path) == []


def test_an_exception_ends_the_copies(script: Write, tmp_path: Path) -> None:
    def fail(copies: CopyGroup) -> None:
        copies.start(0, script("forever()\n"), os.environ)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), group() as copies:
        fail(copies)
    assert running(tmp_path) == []


def test_being_asked_to_end_ends_the_copies(script: Write, tmp_path: Path) -> None:
    stop = Stop()
    with group(stop) as copies:
        copies.start(0, script("forever()\n"), os.environ)
        until(copies, lambda: bool(copies.copies[0].lines))
        stop.ask()
        with pytest.raises(StoppedError):
            copies.pump(time.monotonic() + SECONDS)
    assert running(tmp_path) == []


def test_a_program_that_prints_without_end_costs_bounded_memory(script: Write) -> None:
    program = script(
        "for number in range(300): print('x' * 1000)\n"
        "sys.stdout.write('y' * 5_000_000)\nsys.stdout.flush()\nprint()\nfigure(rate=1)\ntime.sleep(60)\n"
    )
    with group() as copies:
        copies.start(0, program, os.environ)
        tracemalloc.start()
        until(copies, lambda: bool(copies.copies[0].lines))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2_000_000
        assert len(copies.copies[0].tail) == TAIL_LINES
        assert len(copies.copies[0].last_lines()) < 10_000


def test_a_program_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'/none/program' cannot be started: No such file"), group() as copies:
        copies.start(0, ("/none/program",), os.environ)


COMPARISON = """
import sys, time
from gpushare.kubectl.rules.trial.printed import FigureReader, PrintedFigures
from gpushare_workload.processes.copies import CopyGroup
from gpushare_workload.processes.stopping import Stop
with CopyGroup(PrintedFigures(FigureReader(field="rate")), Stop(), 0.5) as copies:
    copies.start(0, sys.argv[1:], {})
    copies.start(0, sys.argv[1:], {})
    copies.pump(time.monotonic() + 60, lambda: all(copy.lines for copy in copies.copies))
    print("all run", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("text", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"], ids=["", "ignore SIGTERM"])
def test_a_comparison_that_is_killed_leaves_no_copies(script: Write, text: str, tmp_path: Path) -> None:
    program = script(f"{text}figure(rate=1)\ntime.sleep(600)\n")
    command = [sys.executable, "-c", COMPARISON, *program]
    comparison = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert comparison.stdout is not None
    assert comparison.stdout.readline() == "all run\n"
    assert len(running(tmp_path)) > 2
    comparison.kill()
    comparison.wait()
    comparison.stdout.close()
    end = time.monotonic() + SECONDS
    while running(tmp_path):
        assert time.monotonic() < end, "copies go on"
        time.sleep(0.05)
