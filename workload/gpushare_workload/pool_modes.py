"""The ways to run the tasks of the scenario `pool`: each takes the same data and starts its own processes."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpushare_workload.backend import Backend
from gpushare_workload.backend.seam import Vector
from gpushare_workload.dispatch import dispatch
from gpushare_workload.flow import Flow
from gpushare_workload.gpu_memory import used_mib
from gpushare_workload.identity import identity
from gpushare_workload.outcomes import Done, Refused, WorkerError, describe
from gpushare_workload.shared import SharedArray
from gpushare_workload.stopping import Stop
from gpushare_workload.worker import Worker
from gpushare_workload.workers import START_SECONDS, Team

Identity = dict[str, str | bool]
TASK_SECONDS = 120.0
"""Longest wait for one task: a worker that hangs is an error, not a hang of this program."""
PAIR_SECONDS = 0.5
"""How long the processes of `pair` repeat the tasks: long beside the differences of their starts."""
CLIENT_SECONDS = 3.0
"""More time to start for each client of `ceiling`, all of which start at once."""


@dataclass(frozen=True, slots=True)
class Job:
    data: SharedArray
    """(tasks, elements) doubles."""
    backend: str
    workers: int
    streams: int
    clients: int
    stop: Stop


@dataclass(frozen=True, slots=True)
class Taken:
    """What a way gave. `sums` holds the tasks' results, once for each time that all tasks ran."""

    sums: list[Vector]
    identity: Identity
    processes: int
    """Most processes at once."""
    memory_mib: int | None
    """GPU memory of one process; None where it cannot be seen."""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker has to say: results by task, when its context stood and when it was done (CLOCK_MONOTONIC)."""

    sums: dict[int, float]
    began: float
    ended: float
    identity: Identity
    memory_mib: int | None
    passes: int = 1
    """How often all of `sums` was computed."""


def pair(job: Job) -> Taken:
    """The same tasks over and over in one process, then in two at once."""
    [alone] = _at_once(job, 1)
    both = _at_once(job, 2)
    figures = {
        "alone_tasks_per_second": round(_rate(alone), 1),
        "together_tasks_per_second": round(sum(_rate(share) for share in both), 1),
    }
    taken = [_taken(job, [share], 2, figures) for share in both]
    return replace(taken[0], sums=[it.sums[0] for it in taken])


def process_per_task(job: Job) -> Taken:
    """A process for each task, as many at once as there are workers."""
    started = []
    with Team(job.stop) as team:
        for task in range(len(job.data.array)):
            team.wait_for_fewer(job.workers, TASK_SECONDS)
            started.append(time.monotonic())
            team.start(_one_task, job.data, job.backend, task, name=f"task {task}")
        shares: list[Share] = team.results(TASK_SECONDS)
    waits = [share.began - start for share, start in zip(shares, started, strict=True)]
    figures = {"startup_seconds_each": round(sum(waits) / len(waits), 4)} if waits else {}
    return _taken(job, shares, min(job.workers, len(shares)), figures)


def pool(job: Job) -> Taken:
    """Long-lived workers, each of which takes the next task when it is done with one."""
    began = time.monotonic()
    with Team(job.stop) as team:
        for _ in range(job.workers):
            team.start(_long_lived, job.data, job.backend)
        team.go()
        ready = time.monotonic()
        dispatch(team, Flow(len(job.data.array), [job.workers]), TASK_SECONDS)
        work = time.monotonic() - ready
        shares: list[Share] = team.results(TASK_SECONDS)
    return _taken(job, shares, job.workers, _seconds(ready - began, work))


def streams(job: Job) -> Taken:
    """One process, a launch for each task, spread over streams."""
    return _in_one(job, job.streams)


def batched(job: Job) -> Taken:
    """One process, one launch for all tasks."""
    return _in_one(job, 0)


def ceiling(job: Job) -> Taken:
    """As many clients at once as there shall be, and how many of them the GPU takes."""
    with Team(job.stop) as team:
        for number in range(job.clients):
            team.start(_client, job.backend, name=f"client {number}")
        team.go(START_SECONDS + CLIENT_SECONDS * job.clients, everybody=False)
        outcomes = team.outcomes(TASK_SECONDS)
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, Done | Refused):
            raise WorkerError(f"client {number} {describe(outcome)}")
    accepted = [it.value for it in outcomes if isinstance(it, Done)]
    refused = [it for it in outcomes if isinstance(it, Refused)]
    figures = {
        "clients": job.clients,
        "accepted": len(accepted),
        "refused": len(refused),
        "refusals": {f"CUDA error {code}": count for code, count in Counter(it.code for it in refused).items()},
    }
    known, memory = accepted[0] if accepted else ({}, None)
    return Taken([], known, len(accepted), memory, figures)


MODES: dict[str, Callable[[Job], Taken]] = {
    "pair": pair,
    "process-per-task": process_per_task,
    "pool": pool,
    "streams": streams,
    "batched": batched,
    "ceiling": ceiling,
}
NAMED_ONLY = frozenset({"ceiling"})
"""It takes every place on the GPU."""


def _at_once(job: Job, processes: int) -> list[Share]:
    with Team(job.stop) as team:
        for _ in range(processes):
            team.start(_all_tasks, job.data, job.backend)
        team.go()
        shares: list[Share] = team.results(TASK_SECONDS)
    return shares


def _in_one(job: Job, streams: int) -> Taken:
    began = time.monotonic()
    with Team(job.stop) as team:
        team.start(_whole, job.data, job.backend, streams)
        team.go()
        [share] = team.results(TASK_SECONDS)
    return _taken(job, [share], 1, _seconds(share.began - began, share.ended - share.began))


def _seconds(startup: float, work: float) -> dict[str, float]:
    return {"startup_seconds": round(startup, 4), "work_seconds": round(work, 4)}


def _taken(job: Job, shares: list[Share], processes: int, figures: dict[str, Any]) -> Taken:
    """All workers' results in the order of the tasks."""
    sums = {task: value for share in shares for task, value in share.sums.items()}
    ordered = np.array([sums[task] for task in sorted(sums)], dtype=np.float64)
    known, memory = (shares[0].identity, shares[0].memory_mib) if shares else ({}, None)
    return Taken([ordered], known, processes, memory, figures)


def _rate(share: Share) -> float:
    return share.passes * len(share.sums) / (share.ended - share.began)


def _all_tasks(worker: Worker, data: SharedArray, choice: str) -> Share:
    with worker.gpu(choice) as backend:
        backend.sum_of_squares(np.ones(data.array.shape[1]))
        worker.start()
        sums: dict[int, float] = {}
        began, passes = time.monotonic(), 0
        while time.monotonic() < began + PAIR_SECONDS:
            worker.stop.check()
            sums = {task: backend.sum_of_squares(vector) for task, vector in enumerate(data.array)}
            passes += 1
        return Share(sums, began, time.monotonic(), identity(backend), used_mib(backend), passes)


def _one_task(worker: Worker, data: SharedArray, choice: str, task: int) -> Share:
    with worker.gpu(choice) as backend:
        began = time.monotonic()
        sums = {task: backend.sum_of_squares(data.array[task])}
        return Share(sums, began, time.monotonic(), identity(backend), used_mib(backend))


def _long_lived(worker: Worker, data: SharedArray, choice: str) -> Share:
    def compute(backend: Backend) -> dict[int, float]:
        return {order.item: backend.sum_of_squares(data.array[order.item]) for order in worker.tasks()}

    return _share(worker, data, choice, compute)


def _whole(worker: Worker, data: SharedArray, choice: str, streams: int) -> Share:
    def compute(backend: Backend) -> dict[int, float]:
        if streams:
            return dict(enumerate(backend.sums_of_squares_streamed(list(data.array), streams)))
        return dict(enumerate(backend.sums_of_squares_batched(data.array)))

    return _share(worker, data, choice, compute)


def _share(worker: Worker, data: SharedArray, choice: str, compute: Callable[[Backend], dict[int, float]]) -> Share:
    """Runs `compute` on a warm context, from the common start on."""
    with worker.gpu(choice) as backend:
        backend.sum_of_squares(np.ones(data.array.shape[1]))
        worker.start()
        began = time.monotonic()
        sums = compute(backend)
        return Share(sums, began, time.monotonic(), identity(backend), used_mib(backend))


def _client(worker: Worker, choice: str) -> tuple[Identity, int | None]:
    with worker.gpu(choice) as backend:
        worker.start()
        return identity(backend), used_mib(backend)
