"""The modes of the scenario `pool`: each runs the same tasks in processes of its own."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpushare_workload.backend import Backend
from gpushare_workload.backend.interface import Vector, identity
from gpushare_workload.gpus.grant import MIB, ContainerGrant
from gpushare_workload.gpus.inventory import open_monitor
from gpushare_workload.gpus.monitor import GpuMonitorError
from gpushare_workload.gpus.utilisation import GpuWatch, Utilisation
from gpushare_workload.processes.flow import Flow, dispatch
from gpushare_workload.processes.outcomes import Done, Outcome, Refused, WorkerError, describe
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import START_SECONDS, Team
from gpushare_workload.processes.worker import Worker

Identity = dict[str, str | bool]
TASK_SECONDS = 120.0
"""Longest wait for one task: a worker that hangs is an error, not a hang of this program."""
PAIR_SECONDS = 0.5
"""How long the processes of `pair` repeat the tasks: long compared with the differences of their starts."""
MOST_PROCESSES = 20
"""Tasks that `process-per-task` runs: it measures the price of a process, which more of them do not change."""
CLIENT_SECONDS = 3.0
"""More time to start for each client of `ceiling`, since all of them start at once."""


@dataclass(frozen=True, slots=True)
class PoolJob:
    """The tasks, and how many processes, streams and clients the modes may use."""

    data: SharedArray
    """(tasks, elements) doubles."""
    backend: str
    workers: int
    streams: int
    clients: int
    stop: Stop
    prepare_seconds: float = 0.0
    """Seconds of a CPU core for each task."""
    advance: Callable[[float], None] = lambda _: None
    """To call with the number of processes that have begun to work since its last call."""

    def tasks(self, mode: str) -> int:
        """How many of the tasks a mode runs."""
        count = len(self.data.array)
        return min(count, MOST_PROCESSES) if mode in ONE_EACH else count

    def processes(self, mode: str) -> int:
        """How many processes a mode starts."""
        return {"pair": 3, "process-per-task": self.tasks(mode), "pool": self.workers, "ceiling": self.clients}.get(
            mode, 1
        )


@dataclass(frozen=True, slots=True)
class ModeResult:
    """What a mode gave. `sums` holds the results of the tasks, once for each time that all tasks ran."""

    sums: list[Vector]
    identity: Identity
    processes: int
    """Most processes at once."""
    memory_mib: int | None
    """GPU memory of one process; None if unknown."""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskResults:
    """What one worker reports: results by task, and the time of its work (CLOCK_MONOTONIC, with its context open)."""

    sums: dict[int, float]
    began: float
    ended: float
    identity: Identity
    memory_mib: int | None
    passes: int = 1
    """How often all of `sums` was computed."""


def pair(job: PoolJob) -> ModeResult:
    """The same tasks over and over in one process, then in two at once."""
    [alone], busy_alone = _at_once(job, 1)
    both, busy = _at_once(job, 2)
    figures = {
        "alone_gpu_busy_percent": busy_alone,
        "gpu_busy_percent": busy,
        "alone_tasks_per_second": round(_rate(alone), 1),
        "together_tasks_per_second": round(sum(_rate(worker) for worker in both), 1),
    }
    results = [_mode_result([worker], 2, figures) for worker in both]
    return replace(results[0], sums=[result.sums[0] for result in results])


def process_per_task(job: PoolJob) -> ModeResult:
    """A process for each of the first tasks; `workers` of them run at once."""
    started = []
    with Team(job.stop) as team, GpuWatch() as seen:
        for task in range(job.tasks("process-per-task")):
            team.wait_for_fewer(job.workers, TASK_SECONDS)
            started.append(time.monotonic())
            team.start(_one_task, job.data, job.backend, job.prepare_seconds, task, name=f"task {task}")
            job.advance(1)
        results: list[TaskResults] = team.results(TASK_SECONDS)
    waits = [result.began - start for result, start in zip(results, started, strict=True)]
    figures: dict[str, Any] = {"gpu_busy_percent": seen.busy_percent}
    if waits:
        figures["startup_seconds_each"] = round(sum(waits) / len(waits), 4)
    return _mode_result(results, min(job.workers, len(results)), figures)


def pool(job: PoolJob) -> ModeResult:
    """Long-lived workers, each of which takes the next task when it has finished one."""
    began = time.monotonic()
    with Team(job.stop) as team:
        for _ in range(job.workers):
            team.start(_long_lived, job.data, job.backend, job.prepare_seconds)
        watch = GpuWatch()
        team.go()
        with watch as seen:
            ready = time.monotonic()
            dispatch(team, Flow(len(job.data.array), [job.workers]), TASK_SECONDS)
            work = time.monotonic() - ready
        results: list[TaskResults] = team.results(TASK_SECONDS)
    return _mode_result(results, job.workers, _seconds(ready - began, work, seen))


def streams(job: PoolJob) -> ModeResult:
    """One process, one launch for each task, spread over streams."""
    return _in_one(job, job.streams)


def batched(job: PoolJob) -> ModeResult:
    """One process, one launch for all tasks."""
    return _in_one(job, 0)


def ceiling(job: PoolJob) -> ModeResult:
    """`clients` processes at once: how many of them the GPU accepts."""
    with Team(job.stop) as team:
        for number in range(job.clients):
            team.start(_client, job.backend, name=f"client {number}")
        team.go(START_SECONDS + CLIENT_SECONDS * job.clients, every_member=False)
        outcomes = team.outcomes(TASK_SECONDS)
    return count_accepted(outcomes)


def count_accepted(outcomes: Sequence[Outcome]) -> ModeResult:
    """The figures of `ceiling`. Raises WorkerError for a client that was neither accepted nor refused. Pure."""
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, Done | Refused):
            raise WorkerError(f"client {number} {describe(outcome)}")
    accepted = [outcome.value for outcome in outcomes if isinstance(outcome, Done)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    figures = {
        "clients": len(outcomes),
        "accepted": len(accepted),
        "refused": len(refused),
        "refusals": dict(Counter(f"CUDA error {outcome.code}" for outcome in refused)),
    }
    known, memory = accepted[0] if accepted else ({}, None)
    return ModeResult([], known, len(accepted), memory, figures)


MODES: dict[str, Callable[[PoolJob], ModeResult]] = {
    "pair": pair,
    "process-per-task": process_per_task,
    "pool": pool,
    "streams": streams,
    "batched": batched,
    "ceiling": ceiling,
}
ONE_EACH = frozenset({"process-per-task"})
"""Starts a process for each task, and says itself when one has begun."""
SIZED = frozenset({"process-per-task", "pool"})
"""Run with each number of workers."""
NAMED_ONLY = frozenset({"ceiling"})
"""Takes every place on the GPU, so it runs only when it is named."""


def _at_once(job: PoolJob, processes: int) -> tuple[list[TaskResults], float | None]:
    """Their results, and how busy the GPU was."""
    with Team(job.stop) as team:
        for _ in range(processes):
            team.start(_all_tasks, job.data, job.backend, job.prepare_seconds)
        watch = GpuWatch()
        team.go()
        with watch as seen:
            results: list[TaskResults] = team.results(TASK_SECONDS)
    return results, seen.busy_percent


def _in_one(job: PoolJob, streams: int) -> ModeResult:
    began = time.monotonic()
    with Team(job.stop) as team:
        team.start(_whole, job.data, job.backend, job.prepare_seconds, streams)
        watch = GpuWatch()
        team.go()
        with watch as seen:
            [result] = team.results(TASK_SECONDS)
    return _mode_result([result], 1, _seconds(result.began - began, result.ended - result.began, seen))


def _seconds(startup: float, work: float, seen: Utilisation) -> dict[str, Any]:
    return {
        "startup_seconds": round(startup, 4),
        "work_seconds": round(work, 4),
        "gpu_busy_percent": seen.busy_percent,
    }


def _mode_result(results: list[TaskResults], processes: int, figures: dict[str, Any]) -> ModeResult:
    """The results of all workers in the order of the tasks."""
    sums = {task: value for result in results for task, value in result.sums.items()}
    ordered = np.array([sums[task] for task in sorted(sums)], dtype=np.float64)
    known, memory = (results[0].identity, results[0].memory_mib) if results else ({}, None)
    return ModeResult([ordered], known, processes, memory, figures)


def _rate(result: TaskResults) -> float:
    return result.passes * len(result.sums) / (result.ended - result.began)


def use_core(seconds: float) -> None:
    """Keeps a CPU core at work for that long; time in which others had the core does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _all_tasks(worker: Worker, data: SharedArray, choice: str, prepare: float) -> TaskResults:
    with worker.gpu(choice) as backend:
        backend.sum_of_squares(np.ones(data.array.shape[1]))
        worker.start()
        sums: dict[int, float] = {}
        began, passes = time.monotonic(), 0
        while time.monotonic() < began + PAIR_SECONDS:
            worker.stop.check()
            sums = {task: _prepared(backend, vector, prepare) for task, vector in enumerate(data.array)}
            passes += 1
        return TaskResults(sums, began, time.monotonic(), identity(backend), used_mib(backend), passes)


def _prepared(backend: Backend, vector: Vector, prepare: float) -> float:
    use_core(prepare)
    return backend.sum_of_squares(vector)


def _one_task(worker: Worker, data: SharedArray, choice: str, prepare: float, task: int) -> TaskResults:
    with worker.gpu(choice) as backend:
        began = time.monotonic()
        sums = {task: _prepared(backend, data.array[task], prepare)}
        return TaskResults(sums, began, time.monotonic(), identity(backend), used_mib(backend))


def _long_lived(worker: Worker, data: SharedArray, choice: str, prepare: float) -> TaskResults:
    def compute(backend: Backend) -> dict[int, float]:
        return {task.item: _prepared(backend, data.array[task.item], prepare) for task in worker.tasks()}

    return _timed(worker, data, choice, compute)


def _whole(worker: Worker, data: SharedArray, choice: str, prepare: float, streams: int) -> TaskResults:
    def compute(backend: Backend) -> dict[int, float]:
        use_core(prepare * len(data.array))
        if streams:
            return dict(enumerate(backend.sums_of_squares_streamed(list(data.array), streams)))
        return dict(enumerate(backend.sums_of_squares_batched(data.array)))

    return _timed(worker, data, choice, compute)


def _timed(
    worker: Worker, data: SharedArray, choice: str, compute: Callable[[Backend], dict[int, float]]
) -> TaskResults:
    """Runs `compute` from the common start on, with a context whose first kernel has run."""
    with worker.gpu(choice) as backend:
        backend.sum_of_squares(np.ones(data.array.shape[1]))
        worker.start()
        began = time.monotonic()
        sums = compute(backend)
        return TaskResults(sums, began, time.monotonic(), identity(backend), used_mib(backend))


def _client(worker: Worker, choice: str) -> tuple[Identity, int | None]:
    with worker.gpu(choice) as backend:
        worker.start()
        return identity(backend), used_mib(backend)


def used_mib(backend: Backend) -> int | None:
    """MiB, or None if unknown.

    Under a memory limit CUDA shows the rest of the limit as free (measured): the difference is this process's own
    memory. Without a limit the figure is NVML's, which lists the host's PIDs: a process in a container does not find
    itself there.
    """
    limit = ContainerGrant.from_environment().process_memory
    if limit is not None:
        return max(0, limit - backend.device().free) // MIB
    try:
        monitor = open_monitor()
        processes = monitor.processes() if monitor is not None else None
    except GpuMonitorError:
        return None
    if processes is None:
        return None
    return {**processes.others, **processes.mps_clients}.get(os.getpid())
