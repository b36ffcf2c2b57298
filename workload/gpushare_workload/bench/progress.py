"""The progress of a benchmark on standard error: a bar with the time left on a terminal, else a line for each pass.

The time left is the plan's estimate, corrected by how long the finished passes took.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from gpushare.messages.wording import count_of
from gpushare_workload.bench.plan import BenchPlan, Pass, pass_seconds, passes
from gpushare_workload.mps.modes import SharingMode


class RemainingTime:
    """Call `done` after each pass, in the order of the plan. Pure."""

    def __init__(self, plan: BenchPlan, ordered: Sequence[Pass]) -> None:
        self._estimates = [pass_seconds(plan, bench_pass) for bench_pass in ordered]
        self._done = 0
        self._took = 0.0

    def done(self, seconds: float) -> None:
        self._done += 1
        self._took += seconds

    def seconds(self) -> float:
        """Never negative; the plan's own estimate before the first pass is done."""
        estimated = sum(self._estimates[: self._done])
        factor = self._took / estimated if estimated else 1.0
        return factor * sum(self._estimates[self._done :])


def duration_text(seconds: float) -> str:
    """A duration for people, such as `40 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class PassProgress:
    """The progress of a plan: call `began` and `done` for each pass.

    `show` takes the number of passes that are done, what runs or ran last, and the time left.
    """

    def __init__(self, plan: BenchPlan, show: Callable[[int, str, str], None], each_beginning: bool = False) -> None:
        """`each_beginning`: also a pass that begins is shown, not its end alone."""
        self._remaining = RemainingTime(plan, passes(plan))
        self._show, self._each_beginning = show, each_beginning
        self._count, self._began = 0, time.monotonic()

    def began(self, bench_pass: Pass) -> None:
        self._began = time.monotonic()
        if self._each_beginning:
            self._show_now(bench_pass)

    def done(self, bench_pass: Pass) -> None:
        self._count += 1
        self._remaining.done(time.monotonic() - self._began)
        self._show_now(bench_pass)

    def _show_now(self, bench_pass: Pass) -> None:
        self._show(self._count, pass_text(bench_pass), duration_text(self._remaining.seconds()))


def pass_text(bench_pass: Pass) -> str:
    """The pass for people, such as `repeat 1: mps, 4 clients`."""
    unit = "stream" if bench_pass.mode is SharingMode.STREAMS else "client"
    return f"repeat {bench_pass.repeat + 1}: {bench_pass.mode.value}, {count_of(bench_pass.clients, unit)}"


@contextmanager
def shown(plan: BenchPlan, stream: TextIO | None = None) -> Iterator[PassProgress]:
    """Shows the progress of a plan on `stream` (standard error by default)."""
    stream, total = stream or sys.stderr, len(passes(plan))
    if not stream.isatty():

        def line(count: int, text: str, left: str) -> None:
            print(f"[{count}/{total}] {text}; about {left} left", file=stream, flush=True)

        yield PassProgress(plan, line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task("", total=total, left="")

        def update(count: int, text: str, left: str) -> None:
            bar.update(task, completed=count, description=text, left=left)

        yield PassProgress(plan, update, each_beginning=True)
