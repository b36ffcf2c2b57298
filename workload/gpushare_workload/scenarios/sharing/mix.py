"""mix: which workloads share a GPU well?

Commonly claimed: two programs on one GPU take twice as long. That depends on what bounds them: programs that need
different parts of the GPU (arithmetic, device memory, the link to the host) can run beside each other; programs that
need the same part divide it.

Measured: a compute-bound, a memory-bound and a transfer-bound program in every pair, also two of the same kind, each in
a closed loop in its own process. For each program: launches per second beside the other, and the slowdown against the
same process alone at the same limits. 1.0 means no effect; 2.0 means half of the rate. On an H200 at 25 % of the SMs
each: 1.00 to 1.02, but 1.14 for two memory-bound programs and 1.86 for two that copy. In time slices: 2.3 to 5.4 if
neither copies.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpushare_workload.backend.work import Grid, LoadKind, Peaks, Work, implausible
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress

NAME = "mix"
LEAD_SECONDS = 0.05
"""From the request of a run to its common start: longer than the message takes."""
WAIT_SECONDS = 60.0
"""More than a run takes: a worker that hangs is an error."""
SHORTEST_SECONDS = 0.01
"""Even a slow launch can end within this time."""
KINDS = tuple(LoadKind)
SIDES = 2


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """What one side reports when it is ready."""

    backend: str
    timed: bool
    peaks: Peaks
    works: dict[LoadKind, Work]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Run `kind` for `seconds`, from `begin` on (CLOCK_MONOTONIC, which the processes of a machine share)."""

    kind: LoadKind
    begin: float
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_work_options(parser, Grid.SATURATING)
    parser.add_argument("--duration", type=float, default=1.0, metavar="SECONDS", help="time of each pair")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many interleaved runs")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    options.check_work_options(arguments)
    check_bounds(arguments, repeats=1, duration=SHORTEST_SECONDS)
    plan = [(kind,) for kind in KINDS] + list(itertools.combinations_with_replacement(KINDS, SIDES))
    rates: dict[tuple[LoadKind, ...], list[tuple[float, ...]]] = {entry: [] for entry in plan}
    with Team(stop) as team, progress(len(plan) * arguments.repeats, NAME) as advance:
        for _ in range(SIDES):
            team.start(serve, arguments)
        team.go()
        programs = [message for _, message in (team.receive(WAIT_SECONDS) for _ in range(SIDES))]
        events.emit("started", pairs=len(plan), repeats=arguments.repeats)
        for _ in range(arguments.repeats):
            for entry in plan:
                rates[entry].append(_measure(team, entry, arguments.duration))
                advance(1)
        for side in range(SIDES):
            team.send(side, None)
        team.results(WAIT_SECONDS)
    _emit(rates, programs[0], events)


def serve(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of one side: runs what it is sent, until it is sent None. Raises WrongError for a wrong result."""
    with worker.gpu(arguments.backend) as backend, ExitStack() as stack:
        device = backend.device()
        tasks = {
            kind: stack.enter_context(closing(backend.prepare(options.work_of(arguments, device, kind))))
            for kind in KINDS
        }
        for task in tasks.values():
            task.launch()
        backend.synchronize()
        worker.start()
        works = {kind: task.work for kind, task in tasks.items()}
        worker.send(ProgramInfo(backend.name, backend.timed, backend.peaks(), works))
        while (timed := worker.receive()) is not None:
            launches = 0
            worker.stop.wait(timed.begin - time.monotonic())
            while time.monotonic() < timed.begin + timed.seconds and not worker.asked():
                tasks[timed.kind].launch()
                backend.synchronize()
                launches += 1
            worker.send(launches / (time.monotonic() - timed.begin))
        for kind, task in tasks.items():
            if wrong := task.wrong():
                raise WrongError(f"{kind.value}: {wrong}")


def _measure(team: Team, kinds: tuple[LoadKind, ...], seconds: float) -> tuple[float, ...]:
    """Launches per second of each side."""
    begin = time.monotonic() + LEAD_SECONDS
    for side, kind in enumerate(kinds):
        team.send(side, TimedRun(kind, begin, seconds))
    answers = dict(team.receive(seconds + WAIT_SECONDS) for _ in kinds)
    return tuple(answers[side] for side in range(len(kinds)))


def slowdown(alone: Sequence[float], beside: Sequence[float]) -> float:
    """How many times as long a launch takes, by the medians of the rates. Raises WrongError if no launch ended."""
    if not statistics.median(beside):
        raise WrongError("a program beside another did not end a single launch: choose a longer --duration")
    return statistics.median(alone) / statistics.median(beside)


def _emit(rates: dict[tuple[LoadKind, ...], list[tuple[float, ...]]], program: ProgramInfo, events: JsonLines) -> None:
    for entry, runs in rates.items():
        for side, kind in enumerate(entry):
            beside = entry[1 - side] if len(entry) == SIDES else None
            got, alone = [run[side] for run in runs], [run[0] for run in rates[(kind,)]]
            if why := implausible(program.works[kind], statistics.median(got), program.peaks):
                raise WrongError(f"{kind.value} beside {beside}: {why}")
            events.emit(
                "measured",
                backend=program.backend,
                timed=program.timed,
                kind=kind.value,
                beside=beside and beside.value,
                launches_per_second=round(statistics.median(got), 1),
                slowdown=round(slowdown(alone, got), 3),
            )
