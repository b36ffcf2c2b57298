"""trio: can inference, training and preprocessing share one GPU?

Commonly claimed: inference needs a GPU of its own, because a training beside it ruins its latency. Under time slices it
does: a request waits for the turns of the others. Under MPS the three run at the same time, and what is left to decide
is how much of the GPU the training may take. Measure it: a service alone, then beside both.

What runs, a process each: *inference* serves requests that arrive as a Poisson process, each of them a kernel of
`--grid`, and its latency counts from when the request was due. *Training* does steps of `--depth` kernels that fill the
GPU, and waits after each step. *Preprocessing* copies data in and out, and streams it through device memory. Each runs
alone, then all three from a common start, at each of `--threads` for the training. Each launch adds to its result, so
that the checks at the end count them.

Measured: the latency of the requests, the steps of the other two per second, and how busy the GPU was. `kept` is the
rate beside the others ÷ the rate alone without a cap.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpushare_workload.backend import Backend
from gpushare_workload.backend.interface import identity
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.mps.modes import limited, reachable_daemon
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised
from gpushare_workload.scenarios.sharing.serve import percentiles, poisson_arrivals, serve

NAME = "trio"
LEAD_SECONDS = 0.05
"""Time from the request of a run to its common start: longer than the message takes."""
WAIT_SECONDS = 60.0
"""More time than a run takes: a worker that hangs is an error."""
SHORTEST_SECONDS = 0.05


class Role(StrEnum):
    """What one of the three processes does."""

    INFERENCE = "inference"
    TRAINING = "training"
    PREPROCESSING = "preprocessing"


ROLES = tuple(Role)
Entry = tuple[Role, ...]
PLAN: tuple[Entry, ...] = (*((role,) for role in ROLES), ROLES)


@dataclass(frozen=True, slots=True)
class RoleRun:
    """Run for `seconds`, from `begin` on (CLOCK_MONOTONIC, which the processes of a machine share)."""

    begin: float
    seconds: float
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=200.0, metavar="PER_SECOND", help="requests that arrive")
    parser.add_argument("--depth", type=int, default=16, help="kernels of a training step")
    parser.add_argument("--duration", type=float, default=2.0, metavar="SECONDS", help="time of each run")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many interleaved runs")
    options.add_work_options(parser, Grid.HALF)
    parser.add_argument(
        "--threads",
        nargs="+",
        type=float,
        default=[100.0],
        metavar="PERCENT",
        help="percent of the SMs that the training may use under MPS; 100 sets no limit and is measured always "
        "(default: 100)",
    )


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    options.check_work_options(arguments)
    check_bounds(arguments, depth=1, repeats=1, duration=SHORTEST_SECONDS)
    if not 0 < arguments.rate < float("inf"):
        raise ValueError(f"--rate {arguments.rate}: must be more than 0")
    limits = sorted({100.0, *arguments.threads}, reverse=True)
    options.check_threads(limits, reachable_daemon() is not None)
    by_role: dict[tuple[float, Entry, Role], list[dict[str, Any]]] = {}
    with progress(len(PLAN) * arguments.repeats * len(limits), NAME) as advance:
        for repeat in range(arguments.repeats):
            for percent in limits:
                _measure_all(arguments, percent, arguments.seed + repeat, stop, by_role)
                advance(len(PLAN))
    sharing = "time-slicing" if reachable_daemon() is None else "mps"
    for (percent, entry, role), runs in by_role.items():
        alone = by_role[100.0, (role,), role]
        kept = [{**figures, "kept": kept_of(figures, whole)} for figures, whole in zip(runs, alone, strict=True)]
        events.emit(
            "measured",
            sharing=sharing,
            role=role,
            beside=[other for other in entry if other is not role],
            training_threads_percent=percent,
            **summarised(kept),
        )


def kept_of(figures: Mapping[str, Any], whole: Mapping[str, Any]) -> float | None:
    """The part that a role keeps of its rate alone; None where no rate is a GPU's. Pure."""
    return float(figures["per_second"] / whole["per_second"]) if figures["timed"] else None


def _measure_all(
    arguments: argparse.Namespace,
    percent: float,
    seed: int,
    stop: Stop,
    by_role: dict[tuple[float, Entry, Role], list[dict[str, Any]]],
) -> None:
    """Every entry of the plan once, with the training at one thread limit, in three new processes."""
    with Team(stop) as team:
        for role in ROLES:
            limit = limited(percent) if role is Role.TRAINING else {}
            team.start(TARGETS[role], arguments, name=role.value, environment=limit)
        team.go()
        watch = GpuWatch()
        for entry in PLAN:
            timed = RoleRun(time.monotonic() + LEAD_SECONDS, arguments.duration, seed)
            with watch as seen:
                requests = {ROLES.index(role): timed for role in entry}
                answers = team.ask(requests, arguments.duration + WAIT_SECONDS)
            for role in entry:
                figures = {**answers[ROLES.index(role)], "gpu_busy_percent": seen.busy_percent}
                by_role.setdefault((percent, entry, role), []).append(figures)
        team.finish(WAIT_SECONDS)


Step = Callable[[], None]
"""Launches something and waits for it."""
Measure = Callable[[RoleRun, Step], dict[str, Any]]


def infer(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of the process that serves requests."""

    def measure(timed: RoleRun, step: Step) -> dict[str, Any]:
        due = [float(arrival) for arrival in poisson_arrivals(arguments.rate, timed.seconds, timed.seed)]
        served = serve(due, step, worker.stop, 2 * timed.seconds)
        latency = {name: value or 0.0 for name, value in percentiles(served.latencies).items()}
        answered = len(served.services)
        # What arrives within the time may be answered after it.
        return {"per_second": answered / timed.seconds, "unserved": served.unserved, **latency}

    _serve_runs(worker, arguments, [(LoadKind.COMPUTE, Grid(arguments.grid), 1)], measure)


def train(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of the process that trains."""
    _serve_runs(worker, arguments, [(LoadKind.COMPUTE, Grid.SATURATING, arguments.depth)], _closed_loop(worker))


def preprocess(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of the process that moves data."""
    parts = [(LoadKind.TRANSFER, Grid.HALF, 1), (LoadKind.MEMORY, Grid.HALF, 1)]
    _serve_runs(worker, arguments, parts, _closed_loop(worker))


TARGETS: dict[Role, Callable[..., None]] = {
    Role.INFERENCE: infer,
    Role.TRAINING: train,
    Role.PREPROCESSING: preprocess,
}


def _closed_loop(worker: Worker) -> Measure:
    def measure(timed: RoleRun, step: Step) -> dict[str, Any]:
        steps, end = 0, timed.begin + timed.seconds
        while time.monotonic() < end and not worker.asked():
            step()
            steps += 1
        return {"per_second": steps / (time.monotonic() - timed.begin)}

    return measure


def _serve_runs(
    worker: Worker,
    arguments: argparse.Namespace,
    parts: Sequence[tuple[LoadKind, Grid, int]],
    measure: Measure,
) -> None:
    """Runs what it is sent until it is sent None. `parts` of a step: kind, grid, and how many launches of it.

    Raises WrongError for a wrong result.
    """
    with worker.gpu(arguments.backend) as backend, ExitStack() as stack:
        loads = [
            (stack.enter_context(closing(backend.prepare(_work(arguments, backend, kind, grid)))), launches)
            for kind, grid, launches in parts
        ]
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            for task, launches in loads:
                for _ in range(launches):
                    worker.stop.check()
                    task.launch()
            backend.synchronize()

        step()
        worker.start()
        while (timed := worker.receive()) is not None:
            worker.stop.wait(timed.begin - time.monotonic())
            worker.send({**identity(backend), **measure(timed, step)})
        for task, launches in loads:
            if wrong := task.wrong(steps * launches):
                raise WrongError(wrong)


def _work(arguments: argparse.Namespace, backend: Backend, kind: LoadKind, grid: Grid) -> Any:
    return options.work_of(argparse.Namespace(**{**vars(arguments), "grid": grid}), backend.device(), kind)
