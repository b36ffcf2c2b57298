"""How far a benchmark is, on standard error: a bar with the time left on a terminal, else a line for each pass."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from gpushare_workload.bench.plan import Mode, Pass, Plan, passes
from gpushare_workload.bench.remaining import Remaining, told

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class _Timed:
    def __init__(self, plan: Plan) -> None:
        self._total = len(passes(plan))
        self._count = 0
        self._remaining = Remaining(plan, passes(plan))
        self._began = time.monotonic()

    def began(self, one: Pass) -> None:
        self._began = time.monotonic()

    def done(self, one: Pass) -> None:
        self._count += 1
        self._remaining.done(time.monotonic() - self._began)


class Lines(_Timed):
    """For logs."""

    def __init__(self, plan: Plan, stream: TextIO) -> None:
        super().__init__(plan)
        self._stream = stream

    def done(self, one: Pass) -> None:
        super().done(one)
        left = told(self._remaining.seconds())
        print(f"[{self._count}/{self._total}] {described(one)}; about {left} left", file=self._stream, flush=True)


class Bar(_Timed):
    def __init__(self, plan: Plan, progress: "Progress", task: "TaskID") -> None:
        super().__init__(plan)
        self._progress, self._task = progress, task

    def began(self, one: Pass) -> None:
        super().began(one)
        self._progress.update(self._task, description=described(one), left=told(self._remaining.seconds()))

    def done(self, one: Pass) -> None:
        super().done(one)
        self._progress.update(self._task, advance=1, left=told(self._remaining.seconds()))


def described(one: Pass) -> str:
    unit = "stream" if one.mode is Mode.STREAMS else "client"
    return f"repeat {one.repeat + 1}: {one.mode.value}, {one.clients} {unit}{'s' if one.clients > 1 else ''}"


@contextmanager
def shown(plan: Plan, stream: TextIO | None = None) -> Iterator[Lines | Bar]:
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Lines(plan, stream)
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
        yield Bar(plan, progress, progress.add_task("", total=len(passes(plan)), left=""))
