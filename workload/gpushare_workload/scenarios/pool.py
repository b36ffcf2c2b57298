"""pool: can several processes use one GPU at once, and how do I run a GPU function 100 times?

Commonly claimed: give every call its own process. Each process then pays for a CUDA context (hundreds of milliseconds,
60 to 520 MiB), and `Pool(100)` meets the ceiling of 48 MPS clients. The same tasks run here in four ways, so that the
cost is a figure: a process per task, a pool of long-lived workers, one process with streams, one batched launch.

The task: the sum of squares of a vector of doubles; every result is checked against NumPy.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.backend.seam import Vector
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "pool"
MODES = ("process-per-task", "pool", "streams", "batched")
TASK_SECONDS = 120.0
"""Longest wait for one task: a worker that hangs is an error, not a hang of this program."""

_backend: Backend | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--elements", type=int, default=10_000, help="doubles in each task's vector")
    parser.add_argument("--workers", type=int, default=2, help="processes at once; at most 48 clients fit a GPU")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    for name, least in (("tasks", 0), ("elements", 1), ("workers", 1), ("streams", 1)):
        if getattr(arguments, name) < least:
            raise ValueError(f"--{name} {getattr(arguments, name)}: must be at least {least}")
    data = np.random.default_rng(arguments.seed).random((arguments.tasks, arguments.elements))
    expected: Vector = np.einsum("ij,ij->i", data, data)
    ways: dict[str, Callable[[], Vector]] = {
        "process-per-task": lambda: _in_processes(data, arguments, tasks_per_process=1),
        "pool": lambda: _in_processes(data, arguments, tasks_per_process=None),
        "streams": lambda: _in_this_process(
            arguments.backend, lambda it: it.sums_of_squares_streamed(list(data), arguments.streams)
        ),
        "batched": lambda: _in_this_process(arguments.backend, lambda it: it.sums_of_squares_batched(data)),
    }
    for mode in arguments.modes:
        if stop.asked():
            return
        began = time.monotonic()
        got = ways[mode]()
        seconds = time.monotonic() - began
        if got.shape != expected.shape or not np.allclose(got, expected, rtol=1e-9):
            raise WrongError(f"{mode}: the results differ from NumPy's")
        figure: dict[str, Any] = {"mode": mode, "tasks": arguments.tasks, "wall_seconds": round(seconds, 4)}
        report.emit("measured", **figure, tasks_per_second=round(arguments.tasks / seconds, 1))


def _in_processes(data: NDArray[np.float64], arguments: argparse.Namespace, tasks_per_process: int | None) -> Vector:
    """`spawn`, never `fork`: a forked child cannot use a CUDA context that its parent made."""
    with ProcessPoolExecutor(
        max_workers=arguments.workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_open_worker,
        initargs=(arguments.backend,),
        max_tasks_per_child=tasks_per_process,
    ) as executor:
        # A worker that dies breaks the pool: every waiting result then raises BrokenProcessPool.
        return np.array(list(executor.map(_task, data, timeout=TASK_SECONDS)), dtype=np.float64)


def _open_worker(choice: str) -> None:
    global _backend
    _backend = open_backend(choice)


def _task(vector: Vector) -> float:
    if _backend is None:
        raise RuntimeError("the worker has no backend")
    return _backend.sum_of_squares(vector)


def _in_this_process(choice: str, compute: Callable[[Backend], Vector]) -> Vector:
    backend = open_backend(choice)
    try:
        return compute(backend)
    finally:
        backend.close()
