"""pipeline: where does multiprocessing help around a GPU?

Commonly claimed: more processes make the GPU's part faster. One process that keeps the GPU busy leaves little for a
second one. Usually the CPU's part before and after the GPU is slow, under Python's GIL. So here some processes prepare
chunks, one or a few own the GPU, others check the results, and the whole is compared with the same work in one process.

Stages pass on the number of a buffer in shared memory, never the data. A stage begins a chunk only if the queue behind
it has room. Three filters: `add` and `normalise` do little on the CPU; for `signal` the CPU decodes raw readings, fills
in missing ones and normalises them, the GPU convolves them, and the CPU compresses the result as for storage.

Copies between the host and the GPU take most of the GPU's stage. With `--copies overlapped` the buffers are
page-locked, and a chunk is cut into `--pieces` on streams of their own: one is copied while another is computed. The
data may be far larger than the memory that was granted: only one chunk is on the GPU.

Measured: the wall time of one process and of the stages, their start-up apart from it, how busy the workers of each
stage and the GPU were, and how long each queue became, for each number of `--prepare` processes. Every result is
compared with NumPy, and the sums of all forms with each other. All take turns, `--repeats` times.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from itertools import product
from typing import Any

import numpy as np

from gpushare_workload.backend import Backend
from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.backend.interface import Field, identity
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.processes.flow import Flow, StageTask, dispatch
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.cooperation import chunks
from gpushare_workload.scenarios.cooperation.chunks import Buffers, ChunkPlan, FinishedChunk
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised
from gpushare_workload.scenarios.stopwatch import Stopwatch

NAME = "pipeline"
Identity = dict[str, str | bool]
STAGES = ("prepare", "gpu", "finish")
STALL_SECONDS = 120.0
"""Longest time in which no chunk moves on: a chunk takes milliseconds."""

MIB = 1 << 20

Target = Callable[..., tuple[Identity, float]]
"""`target(worker, plan, buffers, own)`: its identity, and the seconds that it spent on chunks."""
Run = tuple[dict[str, Any], Field]
"""The figures of one run, and (chunks, 2): the sum of squares and the stored bytes of each chunk."""


class Copies(StrEnum):
    """How the GPU's stage copies a chunk."""

    PAGEABLE = "pageable"
    """One piece, from and to ordinary memory."""
    OVERLAPPED = "overlapped"
    """Several pieces, from and to page-locked memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--elements", type=int, default=10_000_000, help="floats in total")
    parser.add_argument("--chunk", type=int, default=1_000_000, help="floats in each chunk; the last may be shorter")
    for option, default, what in (("--prepare", 8, "prepare chunks"), ("--finish", 2, "check and store results")):
        several = f"processes that {what}; several numbers are measured in turns"
        parser.add_argument(option, nargs="+", type=int, default=[default], metavar="N", help=several)
    parser.add_argument("--gpu-workers", type=int, default=1, metavar="N", help="processes with a GPU context")
    parser.add_argument("--queue", type=int, default=4, metavar="CHUNKS", help="capacity of a queue")
    parser.add_argument("--pieces", type=int, default=4, help="pieces of a chunk whose copies are overlapped")
    parser.add_argument(
        "--copies",
        nargs="+",
        type=Copies,
        choices=list(Copies),
        default=[Copies.PAGEABLE],
        help="how the GPU's stage copies a chunk; both are measured in turns (default: pageable)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs of each form")
    parser.add_argument(
        "--filters",
        nargs="+",
        type=ChunkFilter,
        choices=list(ChunkFilter),
        default=list(ChunkFilter),
        help="what is computed for each chunk (default: all)",
    )


def run(
    arguments: argparse.Namespace, events: JsonLines, stop: Stop, targets: tuple[Target, Target, Target] | None = None
) -> None:
    """`targets` are those of the three stages: by default prepare_chunks, compute_chunks and finish_chunks."""
    check_bounds(arguments, elements=1, chunk=1, gpu_workers=1, queue=1, pieces=1, repeats=1)
    for option in ("prepare", "finish"):
        for workers in getattr(arguments, option):
            if workers < 1:
                raise ValueError(f"--{option} {workers}: must be at least 1")
    forms = len(arguments.copies) * len(arguments.prepare) * len(arguments.finish)
    with progress(len(arguments.filters) * arguments.repeats * (1 + forms), NAME) as advance:
        for name in arguments.filters:
            plan = ChunkPlan(name, arguments.elements, min(arguments.chunk, arguments.elements), arguments.seed)
            serial: list[dict[str, Any]] = []
            piped: dict[tuple[Copies, int, int], list[dict[str, Any]]] = {}
            for _ in range(arguments.repeats):
                alone, alone_results = _serial(plan, arguments, stop)
                advance(1)
                serial.append(alone)
                for form in product(arguments.copies, arguments.prepare, arguments.finish):
                    copies, preparing, finishing = form
                    cut = replace(plan, pieces=arguments.pieces if copies is Copies.OVERLAPPED else 1)
                    counts = [preparing, arguments.gpu_workers, finishing]
                    staged, others = _piped(
                        cut, counts, arguments, stop, targets or (prepare_chunks, compute_chunks, finish_chunks)
                    )
                    advance(1)
                    if not np.allclose(alone_results[:, 0], others[:, 0], rtol=1e-6):
                        raise WrongError(f"{name}: the pipeline's sums differ from those of one process")
                    piped.setdefault(form, []).append({**staged, "times_as_fast": gain(alone, staged)})
            events.emit("measured", **summarised(serial))
            for (copies, *_), runs in piped.items():
                events.emit("measured", copies=copies, cores=len(os.sched_getaffinity(0)), **summarised(runs))


def gain(alone: Mapping[str, Any], staged: Mapping[str, Any]) -> float | None:
    """How many times as fast the stages are as one process; None where no time is a GPU's. Pure."""
    return float(alone["wall_seconds"] / staged["wall_seconds"]) if staged["timed"] else None


def _serial(plan: ChunkPlan, arguments: argparse.Namespace, stop: Stop) -> Run:
    began = time.monotonic()
    with Team(stop) as team:
        team.start(_serial_target, plan, arguments.backend, name="serial")
        watch = GpuWatch()
        team.go()
        with watch as seen:
            ready = time.monotonic()
            [(known, results, spent)] = team.results(STALL_SECONDS + plan.chunks)
            seconds = time.monotonic() - ready
    figures = _figures(plan, "serial", known, ready - began, seconds, results)
    return {**figures, "gpu_busy_percent": seen.busy_percent, "busy": _busy(spent, seconds, [1, 1, 1])}, results


def _piped(
    plan: ChunkPlan,
    workers: list[int],
    arguments: argparse.Namespace,
    stop: Stop,
    targets: tuple[Target, Target, Target],
) -> Run:
    """`workers` of each stage."""
    flow = Flow(plan.chunks, workers, arguments.queue)
    buffers, shared_results = SharedArray((flow.slots, 3, plan.chunk), np.float32), SharedArray((plan.chunks, 2))
    began = time.monotonic()
    with Team(stop) as team:
        for stage, (target, own) in enumerate(zip(targets, (None, arguments.backend, shared_results), strict=True)):
            for number in range(workers[stage]):
                team.start(target, plan, buffers, own, name=f"{STAGES[stage]} {number}")
        watch = GpuWatch()
        team.go()
        with watch as seen:
            ready = time.monotonic()
            dispatch(team, flow, STALL_SECONDS)
            seconds = time.monotonic() - ready
        results = iter(team.results(STALL_SECONDS))
    by_stage = [[next(results) for _ in range(count)] for count in workers]
    figures = {
        **_figures(plan, "pipeline", by_stage[1][0][0], ready - began, seconds, shared_results.array),
        "gpu_busy_percent": seen.busy_percent,
        "busy": _busy([sum(spent for _, spent in stage) for stage in by_stage], seconds, workers),
        "gpu_seconds": sum(spent for _, spent in by_stage[1]),
        "workers": dict(zip(STAGES, workers, strict=True)),
        "longest_queues": flow.longest,
        "buffers_mib": round(buffers.array.nbytes / MIB),
    }
    return figures, shared_results.array


def _figures(
    plan: ChunkPlan, form: str, known: Identity, startup: float, seconds: float, results: Field
) -> dict[str, Any]:
    return {
        "form": form,
        "filter": plan.filter,
        **known,
        "elements": plan.elements,
        "chunks": plan.chunks,
        "pieces": plan.pieces,
        "stored_mib": round(float(results[:, 1].sum()) / MIB, 1),
        "startup_seconds": startup,
        "wall_seconds": seconds,
        "elements_per_second": plan.elements / seconds,
    }


def _busy(spent: list[float], seconds: float, workers: list[int]) -> dict[str, float]:
    """The fraction of the time that the workers of each stage spent on chunks."""
    return {name: round(spent[stage] / (seconds * workers[stage]), 3) for stage, name in enumerate(STAGES)}


def _serial_target(worker: Worker, plan: ChunkPlan, choice: str) -> tuple[Identity, Field, list[float]]:
    buffers, results = np.empty((3, plan.chunk), np.float32), np.empty((plan.chunks, 2))
    preparing, computing, finishing = watches = [Stopwatch() for _ in STAGES]
    with worker.gpu(choice) as backend:
        _warm_up(plan, backend, buffers)
        worker.start()
        for index in range(plan.chunks):
            worker.stop.check()
            with preparing:
                chunks.prepare(plan, index, buffers)
            with computing:
                chunks.compute(plan, index, buffers, backend)
            with finishing:
                results[index] = _row(chunks.finish(plan, index, buffers))
        return identity(backend), results, [watch.seconds for watch in watches]


def prepare_chunks(worker: Worker, plan: ChunkPlan, buffers: SharedArray, _: None) -> tuple[Identity, float]:
    """The first stage."""
    return {}, _work(worker, lambda task: chunks.prepare(plan, task.item, buffers.array[task.slot]))


def compute_chunks(worker: Worker, plan: ChunkPlan, buffers: SharedArray, choice: str) -> tuple[Identity, float]:
    """The second stage, with a GPU context."""
    with worker.gpu(choice) as backend, backend.page_locked(buffers.array) if plan.pieces > 1 else nullcontext():
        _warm_up(plan, backend, np.empty((3, plan.chunk), np.float32))
        spent = _work(worker, lambda task: chunks.compute(plan, task.item, buffers.array[task.slot], backend))
        return identity(backend), spent


def finish_chunks(
    worker: Worker, plan: ChunkPlan, buffers: SharedArray, results: SharedArray
) -> tuple[Identity, float]:
    """The third stage: checks the results, and writes what became of each chunk."""

    def finish(task: StageTask) -> None:
        results.array[task.item] = _row(chunks.finish(plan, task.item, buffers.array[task.slot]))

    return {}, _work(worker, finish)


def _row(finished: FinishedChunk) -> tuple[float, float]:
    return finished.squares, finished.stored


def _work(worker: Worker, step: Callable[[StageTask], None]) -> float:
    """The seconds that `step` took in total, without the waits for tasks."""
    worker.start()
    watch = Stopwatch()
    for task in worker.tasks():
        with watch:
            step(task)
    return watch.seconds


def _warm_up(plan: ChunkPlan, backend: Backend, buffers: Buffers) -> None:
    """Computes one chunk: the first use compiles the kernels and allocates memory, which counts as start-up."""
    chunks.prepare(plan, 0, buffers)
    chunks.compute(plan, 0, buffers, backend)
