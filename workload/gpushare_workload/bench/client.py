"""One process of a benchmark: a GPU context that runs the loads that the parent requests, and checks the results."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpushare_workload.backend import Backend
from gpushare_workload.backend.interface import DeviceProperties, Task
from gpushare_workload.backend.work import H200_SMS, Load, Peaks, Work
from gpushare_workload.bench.loop import LoopResult, Window, closed_loop
from gpushare_workload.events import WrongError
from gpushare_workload.processes.worker import Worker

ITERATIONS = 5120
"""A block of 256 threads × 4 chains × 5120 at 128 multiply-adds per clock takes 41,000 clocks of an SM: about as
long as the kernels whose figures are in docs/mps.md, so that the figures can be compared."""


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Client to parent: it has its context."""

    pid: int
    backend: str
    simulated: bool
    timed: bool
    device: DeviceProperties
    peaks: Peaks


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Parent to client: prepare this load. `lanes`: streams of the client."""

    load: Load
    lanes: int


def work_of(load: Load, sms: int | None) -> Work:
    """One kernel of a load. `sms` are those of the whole GPU, whatever part of it this client may use."""
    return Work(load.kind, load.grid.blocks(sms or H200_SMS), iterations=ITERATIONS)


def serve(worker: Worker, choice: str) -> None:
    """The target of a client, which ends when the parent sends None. Raises WrongError for a wrong result, GpuError."""
    with worker.gpu(choice) as backend:
        device = backend.device()
        worker.send(ClientInfo(os.getpid(), backend.name, backend.simulated, backend.timed, device, backend.peaks()))
        while (request := worker.receive()) is not None:
            worker.send(_run(worker, backend, work_of(request.load, device.total_sms), request))


def _run(worker: Worker, backend: Backend, work: Work, request: LoadRequest) -> LoopResult:
    load = request.load
    with ExitStack() as stack:
        tasks = [stack.enter_context(closing(backend.prepare(work))) for _ in range(request.lanes)]
        rounds = [_round(task, lane, load) for lane, task in enumerate(tasks)]
        for submit in rounds:
            submit()  # the first launch loads the kernel
        backend.synchronize()
        worker.send(tasks[0].work)
        window: Window = worker.receive()
        result = closed_loop(rounds, backend.synchronize, window, worker.asked)
        for lane, task in enumerate(tasks):
            if wrong := task.wrong(load.depth * (1 + result.submitted)):
                raise WrongError(f"{load} on lane {lane}: {wrong}")
        return result


def _round(task: Task, lane: int, load: Load) -> Callable[[], None]:
    """Submits what a client then waits for: `depth` launches one by one, or as one graph."""
    if load.graph:
        return task.captured(load.depth, lane)

    def submit() -> None:
        for _ in range(load.depth):
            task.launch(lane)

    return submit
