"""pipeline: where does multiprocessing help around a GPU?

Commonly claimed: more processes make the GPU's part faster. One process that keeps the GPU busy leaves nothing for a
second one: eight saturating clients of an H200 had together 5,205 launches per second, one had 4,657. What is slow is
usually the CPU's part before and after it, under Python's GIL. So here processes prepare chunks, one or a few others
own the GPU, and more of them check the results, against the same work in one process.

Stages hand on the number of a buffer in shared memory, never the data, and none begins a chunk that would find the
queue behind it full. Measured: the wall time of both forms without their start-up, which is told apart, how busy the
workers of each stage were, and how long each queue became. Every result is compared with NumPy, and the two forms'
sums with each other. On an H200 with 16 CPUs, 10 M floats in chunks of 1 M: added 1.4 times as fast as the serial form,
normalised 2.0 times.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushare_workload import chunks
from gpushare_workload.backend import Backend
from gpushare_workload.backend.seam import Vector
from gpushare_workload.bounds import at_least
from gpushare_workload.chunks import Buffers, Filter, Plan
from gpushare_workload.dispatch import dispatch
from gpushare_workload.flow import Flow, Order
from gpushare_workload.identity import identity
from gpushare_workload.report import Report, WrongError
from gpushare_workload.shared import SharedArray
from gpushare_workload.stopping import Stop
from gpushare_workload.stopwatch import Stopwatch
from gpushare_workload.worker import Worker
from gpushare_workload.workers import Team

NAME = "pipeline"
Identity = dict[str, str | bool]
STAGES = ("prepare", "gpu", "finish")
STALL_SECONDS = 120.0
"""Longest time in which no chunk moves on: each takes milliseconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--elements", type=int, default=10_000_000, help="floats in all")
    parser.add_argument("--chunk", type=int, default=1_000_000, help="floats in each chunk; the last may be shorter")
    parser.add_argument("--prepare", type=int, default=8, metavar="N", help="processes that prepare chunks")
    parser.add_argument("--gpu-workers", type=int, default=1, metavar="N", help="processes with a GPU context")
    parser.add_argument("--finish", type=int, default=2, metavar="N", help="processes that check results")
    parser.add_argument("--queue", type=int, default=4, metavar="CHUNKS", help="room between two stages")
    parser.add_argument("--filters", nargs="+", type=Filter, choices=list(Filter), default=list(Filter))


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    at_least(arguments, elements=1, chunk=1, prepare=1, gpu_workers=1, finish=1, queue=1)
    for name in arguments.filters:
        plan = Plan(name, arguments.elements, min(arguments.chunk, arguments.elements), arguments.seed)
        serial = _serial(plan, arguments, report, stop)
        piped = _piped(plan, arguments, report, stop)
        if not np.allclose(serial, piped, rtol=1e-6):
            raise WrongError(f"{name}: the pipeline's sums differ from those of one process")


def _serial(plan: Plan, arguments: argparse.Namespace, report: Report, stop: Stop) -> Vector:
    began = time.monotonic()
    with Team(stop) as team:
        team.start(_alone, plan, arguments.backend, name="serial")
        team.go()
        ready = time.monotonic()
        [(known, sums, spent)] = team.results(STALL_SECONDS + plan.chunks)
        seconds = time.monotonic() - ready
    figures = _figures(plan, known, ready - began, seconds)
    report.emit("measured", form="serial", **figures, busy=_busy(spent, seconds, [1, 1, 1]))
    result: Vector = sums
    return result


def _piped(plan: Plan, arguments: argparse.Namespace, report: Report, stop: Stop) -> Vector:
    workers = [arguments.prepare, arguments.gpu_workers, arguments.finish]
    flow = Flow(plan.chunks, workers, arguments.queue)
    buffers, sums = SharedArray((flow.slots, 3, plan.chunk), np.float32), SharedArray((plan.chunks,))
    stages: tuple[tuple[Callable[..., tuple[Identity, float]], Any], ...] = (
        (_prepare, None),
        (_compute, arguments.backend),
        (_finish, sums),
    )
    began = time.monotonic()
    with Team(stop) as team:
        for stage, (target, own) in enumerate(stages):
            for number in range(workers[stage]):
                team.start(target, plan, buffers, own, name=f"{STAGES[stage]} {number}")
        team.go()
        ready = time.monotonic()
        dispatch(team, flow, STALL_SECONDS)
        seconds = time.monotonic() - ready
        told = iter(team.results(STALL_SECONDS))
    by_stage = [[next(told) for _ in range(count)] for count in workers]
    report.emit(
        "measured",
        form="pipeline",
        **_figures(plan, by_stage[1][0][0], ready - began, seconds),
        busy=_busy([sum(spent for _, spent in stage) for stage in by_stage], seconds, workers),
        workers=dict(zip(STAGES, workers, strict=True)),
        longest_queues=flow.longest,
        buffers_mib=round(buffers.array.nbytes / 2**20, 1),
    )
    return sums.array


def _figures(plan: Plan, known: Identity, startup: float, seconds: float) -> dict[str, Any]:
    return {
        "filter": plan.filter,
        **known,
        "elements": plan.elements,
        "chunks": plan.chunks,
        "startup_seconds": round(startup, 3),
        "wall_seconds": round(seconds, 4),
        "elements_per_second": round(plan.elements / seconds),
    }


def _busy(spent: list[float], seconds: float, workers: list[int]) -> dict[str, float]:
    """The part of the time that each stage's workers spent on chunks."""
    return {name: round(spent[stage] / (seconds * workers[stage]), 3) for stage, name in enumerate(STAGES)}


def _alone(worker: Worker, plan: Plan, choice: str) -> tuple[Identity, Vector, list[float]]:
    buffers, sums = np.empty((3, plan.chunk), np.float32), np.empty(plan.chunks)
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
                sums[index] = chunks.finish(plan, index, buffers)
        return identity(backend), sums, [it.seconds for it in watches]


def _prepare(worker: Worker, plan: Plan, buffers: SharedArray, _: None) -> tuple[Identity, float]:
    return {}, _work(worker, lambda order: chunks.prepare(plan, order.item, buffers.array[order.slot]))


def _compute(worker: Worker, plan: Plan, buffers: SharedArray, choice: str) -> tuple[Identity, float]:
    with worker.gpu(choice) as backend:
        _warm_up(plan, backend, np.empty((3, plan.chunk), np.float32))
        spent = _work(worker, lambda order: chunks.compute(plan, order.item, buffers.array[order.slot], backend))
        return identity(backend), spent


def _finish(worker: Worker, plan: Plan, buffers: SharedArray, sums: SharedArray) -> tuple[Identity, float]:
    def finish(order: Order) -> None:
        sums.array[order.item] = chunks.finish(plan, order.item, buffers.array[order.slot])

    return {}, _work(worker, finish)


def _work(worker: Worker, step: Callable[[Order], None]) -> float:
    """Seconds spent on the orders, without waiting for them."""
    worker.start()
    watch = Stopwatch()
    for order in worker.tasks():
        with watch:
            step(order)
    return watch.seconds


def _warm_up(plan: Plan, backend: Backend, buffers: Buffers) -> None:
    """Kernels are compiled and memory is taken at their first use, which is part of the start-up."""
    chunks.prepare(plan, 0, buffers)
    chunks.compute(plan, 0, buffers, backend)
