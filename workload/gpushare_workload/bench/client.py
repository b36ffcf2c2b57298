"""One process of a benchmark: a GPU context that runs what it is told to, and checks what came out."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from gpushare_workload.backend import Backend
from gpushare_workload.backend.seam import Device, Task
from gpushare_workload.backend.work import Peaks, Work
from gpushare_workload.bench.loop import Counted, Window, closed_loop
from gpushare_workload.bench.plan import Load
from gpushare_workload.load import SMS
from gpushare_workload.report import WrongError
from gpushare_workload.worker import Worker

ITERATIONS = 5120
"""Of a compute kernel. 256 threads × 4 chains × 5120 at 128 multiply-adds per clock are 41,000 clocks of an SM for each
block: about as long as the kernels whose figures are in docs/mps.md, so that these can be compared with them."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A client that has its context."""

    pid: int
    backend: str
    simulated: bool
    timed: bool
    device: Device
    peaks: Peaks


@dataclass(frozen=True, slots=True)
class Order:
    """What to get ready. `lanes`: streams of this process; `graph`: kernels in one captured graph, 0 for none."""

    load: Load
    lanes: int
    graph: int


@dataclass(frozen=True, slots=True)
class Prepared:
    work: Work


def work_of(load: Load, sms: int | None) -> Work:
    """One kernel of a load on a GPU of so many SMs: of the whole GPU, whatever this client may use of it."""
    return Work(load.kind, load.grid.blocks(sms or SMS), iterations=ITERATIONS)


def serve(worker: Worker, choice: str) -> None:
    """Until the parent sends None. Raises WrongError for a wrong result, GpuError where CUDA failed."""
    with worker.gpu(choice) as backend:
        device = backend.device()
        worker.send(Hello(os.getpid(), backend.name, backend.simulated, backend.timed, device, backend.peaks()))
        while (order := worker.receive()) is not None:
            worker.send(_run(worker, backend, work_of(order.load, device.total_sms), order))


def _run(worker: Worker, backend: Backend, work: Work, order: Order) -> Counted:
    with ExitStack() as stack:
        tasks = [stack.enter_context(closing(backend.prepare(work))) for _ in range(order.lanes)]
        launches = [_launch(task, lane, order.graph) for lane, task in enumerate(tasks)]
        for launch in launches:
            launch()  # the first one loads the kernel
        backend.synchronize()
        worker.send(Prepared(tasks[0].work))
        window: Window = worker.receive()
        counted = closed_loop(launches, backend.synchronize, window, worker.asked)
        for lane, task in enumerate(tasks):
            if wrong := task.wrong():
                raise WrongError(f"{order.load.kind.value} on lane {lane}: {wrong}")
        return counted


def _launch(task: Task, lane: int, graph: int) -> Callable[[], None]:
    return task.captured(graph) if graph else lambda: task.launch(lane)
