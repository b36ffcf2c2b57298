"""pool: can several processes use one GPU at once, and how do I run a GPU function 100 times?

Commonly claimed: CUDA serves one process at a time; every call needs its own process; `Pool(100)` runs 100 of them.
Under MPS kernels of several processes run at the same time. But each process pays for a CUDA context, in time and in
memory, and MPS takes so many clients of a GPU and no more: docs/mps.md and measurements/pages/kernels.md have both.

The task: the sum of squares of a vector of doubles; every result is checked against NumPy. `pair` runs the tasks in one
process, then in two at once. `process-per-task` runs the first of them alone, as many as tell what a process costs.
`ceiling` starts `--clients` clients at once until the GPU refuses more: it leaves no
place for anybody else on that GPU, so it runs only when it is named. `pool` is its bounded form.

How many workers? With `--prepare` a CPU core works on each task before the GPU does, as real programs do; the rate of a
pool then grows with its workers up to the number of cores (`cores`), or until the GPU is busy. `gpu_busy_percent` is
that of the whole GPU while the tasks run; null where NVML cannot tell, for instance of a mode that ends at once.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpushare_workload.backend.interface import Vector
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised
from gpushare_workload.scenarios.sharing.pool_modes import MODES, NAMED_ONLY, ONE_EACH, SIZED, ModeResult, PoolJob

NAME = "pool"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=100, help="independent tasks")
    parser.add_argument("--elements", type=int, default=10_000, help="doubles in each task's vector")
    parser.add_argument(
        "--workers",
        nargs="+",
        type=int,
        default=[2],
        help="processes at once, no more than MPS takes; several numbers are measured in turns, by the modes "
        "`process-per-task` and `pool` alone",
    )
    parser.add_argument(
        "--prepare",
        type=float,
        default=0.0,
        metavar="MS",
        help="milliseconds that a CPU core works on each task before the GPU does (default: %(default)s)",
    )
    parser.add_argument("--streams", type=int, default=8, help="streams of the one process in mode `streams`")
    parser.add_argument("--clients", type=int, default=100, help="clients that `ceiling` starts at once")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs of each mode")
    default = [name for name in MODES if name not in NAMED_ONLY]
    parser.add_argument(
        "--modes", nargs="+", choices=list(MODES), default=default, help="what to run (default: all but `ceiling`)"
    )


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    modes: Mapping[str, Callable[[PoolJob], ModeResult]] = MODES,
) -> None:
    check_bounds(arguments, tasks=0, elements=1, streams=1, clients=1, repeats=1, prepare=0)
    for workers in arguments.workers:
        if workers < 1:
            raise ValueError(f"--workers {workers}: must be at least 1")
    data = SharedArray((arguments.tasks, arguments.elements))
    np.random.default_rng(arguments.seed).random(out=data.array)
    expected: Vector = np.einsum("ij,ij->i", data.array, data.array)
    job = PoolJob(
        data,
        arguments.backend,
        arguments.workers[0],
        arguments.streams,
        arguments.clients,
        stop,
        arguments.prepare / 1000,
    )
    plan = [
        (mode, workers) for mode in arguments.modes for workers in arguments.workers[: None if mode in SIZED else 1]
    ]
    by_mode: dict[tuple[str, int], list[dict[str, Any]]] = {entry: [] for entry in plan}
    starts = arguments.repeats * sum(replace(job, workers=workers).processes(mode) for mode, workers in plan)
    events.emit("started", processes=starts, repeats=arguments.repeats)
    with progress(starts, NAME) as advance:
        for repeat in range(arguments.repeats):
            for mode, workers in plan:
                stop.check()
                sized = replace(job, workers=workers, advance=advance)
                by_mode[mode, workers].append(_once(mode, modes[mode], sized, expected[: job.tasks(mode)]))
                if mode not in ONE_EACH:
                    advance(sized.processes(mode))
                if repeat == arguments.repeats - 1:
                    events.emit("measured", **summarised(by_mode[mode, workers]), cores=len(os.sched_getaffinity(0)))


def _once(mode: str, run_mode: Callable[[PoolJob], ModeResult], job: PoolJob, expected: Vector) -> dict[str, Any]:
    """The figures of one run of a mode. Raises WrongError for a result that differs from `expected`."""
    began = time.monotonic()
    result = run_mode(job)
    seconds = time.monotonic() - began
    for sums in result.sums:
        if sums.shape != expected.shape or not np.allclose(sums, expected, rtol=1e-9):
            raise WrongError(f"{mode}: the results differ from NumPy's")
    figures: dict[str, Any] = {"mode": mode, **result.identity, "processes": result.processes}
    if result.sums:
        tasks = len(expected) * len(result.sums)
        figures |= {"tasks": tasks, "wall_seconds": seconds, "tasks_per_second": tasks / seconds}
        if work := result.figures.get("work_seconds"):
            figures["tasks_per_second_warm"] = tasks / work
    if result.memory_mib is not None:
        figures |= {"gpu_mib": result.memory_mib * result.processes, "gpu_mib_per_process": result.memory_mib}
    return {**figures, **result.figures}
