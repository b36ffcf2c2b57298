"""mix: which workloads share a GPU well?

Commonly claimed: two programs on one GPU take twice as long. That depends on what bounds them: programs that need
different parts of the GPU (arithmetic, device memory, the link to the host) can run beside each other; programs that
need the same part divide it.

Measured: a compute-bound, a memory-bound and a transfer-bound program in every pair, also two of the same kind, each in
a closed loop in its own process; at each of `--threads`, which tightens the limit of both. `combined` is the sum over
both programs of rate ÷ its rate alone without a further limit: 1 means that the two get together what one gets alone, 2
that neither notices the other. `verdict` calls a pair complementary, alike (its programs divide one part of the GPU) or
partly one and partly the other. Each launch adds to its result, so that the check at the end counts them.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpushare_workload.backend.work import Grid, LoadKind, Peaks, Work, implausible
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.mps.modes import limited, reachable_daemon
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import ratio

NAME = "mix"
LEAD_SECONDS = 0.05
"""Time from the request of a run to its common start: longer than the message takes."""
WAIT_SECONDS = 60.0
"""More time than a run takes: a worker that hangs is an error."""
SHORTEST_SECONDS = 0.01
"""Even a slow launch can end within this time."""
KINDS = tuple(LoadKind)
SIDES = 2
COMPLEMENTARY, ALIKE = 1.5, 1.1
"""Combined throughput from which on two programs are complementary, and up to which they divide one part of the GPU."""

Entry = tuple[LoadKind, ...]
"""One kind alone, or a pair."""
PLAN: tuple[Entry, ...] = (
    *((kind,) for kind in KINDS),
    *itertools.combinations_with_replacement(KINDS, SIDES),
)


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


@dataclass(frozen=True, slots=True)
class Measured:
    """One value by thread limit and entry for each repeat."""

    program: ProgramInfo
    rates: dict[tuple[float, Entry], list[tuple[float, ...]]]
    """Launches per second of each side."""
    busy: dict[tuple[float, Entry], list[float | None]]
    """How busy the whole GPU was, in percent; None if unknown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_work_options(parser, Grid.SATURATING)
    parser.add_argument("--duration", type=float, default=1.0, metavar="SECONDS", help="time of each pair")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many interleaved runs")
    options.add_threads_option(parser)


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    options.check_work_options(arguments)
    check_bounds(arguments, repeats=1, duration=SHORTEST_SECONDS)
    limits = sorted({100.0, *arguments.threads}, reverse=True)
    options.check_threads(limits, reachable_daemon() is not None)
    sharing = "time-slicing" if reachable_daemon() is None else "mps"
    measured: Measured | None = None
    with progress(len(PLAN) * arguments.repeats * len(limits), NAME) as advance:
        for _ in range(arguments.repeats):
            for percent in limits:
                measured = _measure_all(arguments, percent, stop, measured, events)
                advance(len(PLAN))
    assert measured is not None  # noqa: S101 - there is at least one repeat and one limit
    emit_all(measured, limits, sharing, events)


def _measure_all(
    arguments: argparse.Namespace, percent: float, stop: Stop, before: Measured | None, events: JsonLines
) -> Measured:
    """`before`, and every entry of the plan once more, at one thread limit, in two new processes."""
    rates, busy = ({}, {}) if before is None else (before.rates, before.busy)
    with Team(stop) as team:
        for _ in range(SIDES):
            team.start(serve, arguments, environment=limited(percent))
        team.go()
        programs: list[ProgramInfo] = team.gather(WAIT_SECONDS)
        if before is None:
            events.emit("started", pairs=len(PLAN), repeats=arguments.repeats)
        watch = GpuWatch()
        for entry in PLAN:
            with watch as seen:
                rates.setdefault((percent, entry), []).append(_measure(team, entry, arguments.duration))
            busy.setdefault((percent, entry), []).append(seen.busy_percent)
        team.finish(WAIT_SECONDS)
    return Measured(programs[0], rates, busy)


def serve(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of one side: runs what it is sent, until it is sent None. Raises WrongError for a wrong result."""
    with worker.gpu(arguments.backend) as backend, ExitStack() as stack:
        device = backend.device()
        tasks = {
            kind: stack.enter_context(closing(backend.prepare(options.work_of(arguments, device, kind))))
            for kind in KINDS
        }
        launched = dict.fromkeys(KINDS, 1)
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
            launched[timed.kind] += launches
        for kind, task in tasks.items():
            if wrong := task.wrong(launched[kind]):
                raise WrongError(f"{kind.value}: {wrong}")


def _measure(team: Team, kinds: Entry, seconds: float) -> tuple[float, ...]:
    """Launches per second of each side."""
    begin = time.monotonic() + LEAD_SECONDS
    runs = {side: TimedRun(kind, begin, seconds) for side, kind in enumerate(kinds)}
    return tuple(team.ask(runs, seconds + WAIT_SECONDS).values())


def slowdown(alone: Sequence[float], beside: Sequence[float]) -> float:
    """How many times as long a launch takes, by the medians of the rates. Raises WrongError if no launch ended."""
    if not statistics.median(beside):
        raise WrongError("a program beside another did not end a single launch: choose a longer --duration")
    return statistics.median(alone) / statistics.median(beside)


def combined(rates: Sequence[float], alone: Sequence[float]) -> float:
    """The sum of each program's rate ÷ its rate alone; NaN if one ended no launch alone. Pure."""
    return sum(rate / whole for rate, whole in zip(rates, alone, strict=True)) if all(alone) else math.nan


def verdict(combined_: Sequence[float]) -> str:
    """The verdict on all repeats' combined throughputs: the worst has to be complementary, the best alike. Pure."""
    if min(combined_) >= COMPLEMENTARY:
        return "complementary"
    return "alike" if max(combined_) <= ALIKE else "partly"


def emit_all(measured: Measured, limits: Sequence[float], sharing: str, events: JsonLines) -> None:
    """A line for each program and each pair. Ratios and verdicts are None where no rate is a GPU's."""
    program, rates = measured.program, measured.rates
    for percent, entry in itertools.product(limits, PLAN):
        runs = rates[percent, entry]
        common = {"backend": program.backend, "timed": program.timed, "sharing": sharing, "threads_percent": percent}
        seen = [percent_busy for percent_busy in measured.busy[percent, entry] if percent_busy is not None]
        utilisation = {"gpu_busy_percent": round(statistics.median(seen), 1) if seen else None}
        for side, kind in enumerate(entry):
            beside = entry[1 - side] if len(entry) == SIDES else None
            got, alone = [run[side] for run in runs], [run[0] for run in rates[percent, (kind,)]]
            whole = [run[0] for run in rates[100.0, (kind,)]]
            if why := implausible(program.works[kind], statistics.median(got), program.peaks):
                raise WrongError(f"{kind.value} beside {beside}: {why}")
            events.emit(
                "measured",
                **common,
                kind=kind.value,
                beside=beside and beside.value,
                launches_per_second=round(statistics.median(got), 1),
                slowdown=round(slowdown(alone, got), 3) if program.timed else None,
                slowdown_of_uncapped=round(slowdown(whole, got), 3) if program.timed else None,
                **utilisation,
            )
        if len(entry) == SIDES:
            sums = [
                combined(run, [rates[100.0, (kind,)][repeat][0] for kind in entry]) for repeat, run in enumerate(runs)
            ]
            events.emit(
                "pair",
                **common,
                kinds=[kind.value for kind in entry],
                **ratio("combined", sums, 3, program.timed),
                **utilisation,
                repeats=len(sums),
                verdict=verdict(sums) if program.timed else None,
            )
