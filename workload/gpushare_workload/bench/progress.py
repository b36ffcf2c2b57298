"""The progress of a benchmark on standard error: a bar with the time left on a terminal, else a line for each pass.

The time left is the plan's estimate, corrected by how long the finished passes took.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from gpushare.messages.wording import count_of
from gpushare_workload.bench.plan import BenchPlan, Pass, SharingMode, pass_seconds, passes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class RemainingTime:
    """Call `done` after each pass, in the order of the plan. Pure."""

    def __init__(self, plan: BenchPlan, ordered: Sequence[Pass]) -> None:
        self._estimates = [pass_seconds(plan, one) for one in ordered]
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
    """Such as `40 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class _TimedPasses:
    def __init__(self, plan: BenchPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = len(passes(plan))
        self._count = 0
        self._remaining = RemainingTime(plan, passes(plan))
        self._clock = clock
        self._began = clock()

    def began(self, one: Pass) -> None:
        self._began = self._clock()

    def done(self, one: Pass) -> None:
        self._count += 1
        self._remaining.done(self._clock() - self._began)

    def left(self) -> str:
        return duration_text(self._remaining.seconds())


class PassLog(_TimedPasses):
    """A line for each pass."""

    def __init__(self, plan: BenchPlan, stream: TextIO) -> None:
        super().__init__(plan)
        self._stream = stream

    def done(self, one: Pass) -> None:
        super().done(one)
        line = f"[{self._count}/{self._total}] {pass_text(one)}; about {self.left()} left"
        print(line, file=self._stream, flush=True)


class PassBar(_TimedPasses):
    """A bar for a terminal."""

    def __init__(self, plan: BenchPlan, progress: "Progress", task: "TaskID") -> None:
        super().__init__(plan)
        self._progress, self._task = progress, task

    def began(self, one: Pass) -> None:
        super().began(one)
        self._progress.update(self._task, description=pass_text(one), left=self.left())

    def done(self, one: Pass) -> None:
        super().done(one)
        self._progress.update(self._task, advance=1, left=self.left())


def pass_text(one: Pass) -> str:
    """Such as `repeat 1: mps, 4 clients`."""
    unit = "stream" if one.mode is SharingMode.STREAMS else "client"
    return f"repeat {one.repeat + 1}: {one.mode.value}, {count_of(one.clients, unit)}"


@contextmanager
def shown(plan: BenchPlan, stream: TextIO | None = None) -> Iterator[PassLog | PassBar]:
    """The observer that shows the progress of a plan on `stream` (standard error by default)."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield PassLog(plan, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(file=stream)) as progress:
        yield PassBar(plan, progress, progress.add_task("", total=len(passes(plan)), left=""))
