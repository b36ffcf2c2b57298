"""mix: which workloads share a GPU well?

Commonly claimed: two programs on one GPU take twice as long. It depends on what each of them waits for: programs that
want different parts of the GPU (arithmetic, device memory, the link to the host) can run beside each other, programs
that want the same one divide it.

Measured: a compute-bound, a memory-bound and a transfer-bound program in every pair, also with its like, each in a
closed loop of its own process. For each one: launches per second beside the other, and the slowdown against running
alone, as the same process at the same cap. 1.0 means that it did not notice; 2.0 that it got half. On an H200 at 25 %
of the SMs each: 1.00 to 1.02, but two memory-bound ones 1.14 and two that copy 1.86. In time slices: 2.3 to 5.4
wherever neither copies.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpushare_workload import load
from gpushare_workload.backend.work import Grid, Kind, Peaks, Work, implausible
from gpushare_workload.bounds import at_least
from gpushare_workload.progress import progress
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop
from gpushare_workload.worker import Worker
from gpushare_workload.workers import Team

NAME = "mix"
LEAD = 0.05
"""Seconds from an order to its common begin: longer than the message takes."""
WAIT_SECONDS = 60.0
"""Beyond the time that was ordered: a worker that hangs is an error."""
SHORTEST = 0.01
"""Seconds in which even a slow launch has a chance to end."""
KINDS = tuple(Kind)
SIDES = 2


@dataclass(frozen=True, slots=True)
class Ready:
    backend: str
    timed: bool
    peaks: Peaks
    works: dict[Kind, Work]


@dataclass(frozen=True, slots=True)
class Order:
    """Run `kind` from `begin` (CLOCK_MONOTONIC, common to all processes of a machine) for `seconds`."""

    kind: Kind
    begin: float
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load.add_arguments(parser, Grid.SATURATING)
    parser.add_argument("--duration", type=float, default=1.0, metavar="SECONDS", help="of each pair")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of so many, taken in turn")


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    load.check(arguments)
    at_least(arguments, repeats=1, duration=SHORTEST)
    plan = [(kind,) for kind in KINDS] + list(itertools.combinations_with_replacement(KINDS, SIDES))
    rates: dict[tuple[Kind, ...], list[tuple[float, ...]]] = {entry: [] for entry in plan}
    with Team(stop) as team, progress(len(plan) * arguments.repeats, NAME) as advance:
        for _ in range(SIDES):
            team.start(serve, arguments)
        team.go()
        ready = [message for _, message in (team.receive(WAIT_SECONDS) for _ in range(SIDES))]
        report.emit("started", pairs=len(plan), repeats=arguments.repeats)
        for _ in range(arguments.repeats):
            for entry in plan:
                rates[entry].append(_measure(team, entry, arguments.duration))
                advance(1)
        for side in range(SIDES):
            team.send(side, None)
        team.results(WAIT_SECONDS)
    _report(rates, ready[0], report)


def serve(worker: Worker, arguments: argparse.Namespace) -> None:
    """One side of the pair, until it is sent None. Raises WrongError for a wrong result."""
    with worker.gpu(arguments.backend) as backend, ExitStack() as stack:
        device = backend.device()
        tasks = {
            kind: stack.enter_context(closing(backend.prepare(load.work(arguments, device, kind)))) for kind in KINDS
        }
        for task in tasks.values():
            task.launch()
        backend.synchronize()
        worker.start()
        works = {kind: task.work for kind, task in tasks.items()}
        worker.send(Ready(backend.name, backend.timed, backend.peaks(), works))
        while (order := worker.receive()) is not None:
            launches = 0
            worker.stop.wait(order.begin - time.monotonic())
            while time.monotonic() < order.begin + order.seconds and not worker.asked():
                tasks[order.kind].launch()
                backend.synchronize()
                launches += 1
            worker.send(launches / (time.monotonic() - order.begin))
        for kind, task in tasks.items():
            if wrong := task.wrong():
                raise WrongError(f"{kind.value}: {wrong}")


def _measure(team: Team, kinds: tuple[Kind, ...], seconds: float) -> tuple[float, ...]:
    """Launches per second of each, by side."""
    begin = time.monotonic() + LEAD
    for side, kind in enumerate(kinds):
        team.send(side, Order(kind, begin, seconds))
    answers = dict(team.receive(seconds + WAIT_SECONDS) for _ in kinds)
    return tuple(answers[side] for side in range(len(kinds)))


def slowdown(alone: Sequence[float], beside: Sequence[float]) -> float:
    """How many times as long a launch takes, by the medians of the rates. Raises WrongError where nothing ran."""
    if not statistics.median(beside):
        raise WrongError("a program beside another did not end a single launch: choose a longer --duration")
    return statistics.median(alone) / statistics.median(beside)


def _report(rates: dict[tuple[Kind, ...], list[tuple[float, ...]]], ready: Ready, report: Report) -> None:
    for entry, runs in rates.items():
        for side, kind in enumerate(entry):
            beside = entry[1 - side] if len(entry) == SIDES else None
            got, alone = [run[side] for run in runs], [run[0] for run in rates[(kind,)]]
            if why := implausible(ready.works[kind], statistics.median(got), ready.peaks):
                raise WrongError(f"{kind.value} beside {beside}: {why}")
            report.emit(
                "measured",
                backend=ready.backend,
                timed=ready.timed,
                kind=kind.value,
                beside=beside and beside.value,
                launches_per_second=round(statistics.median(got), 1),
                slowdown=round(slowdown(alone, got), 3),
            )
