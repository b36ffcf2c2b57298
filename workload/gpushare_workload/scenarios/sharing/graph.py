"""graph: do CUDA graphs cut launch overhead?

Commonly claimed: kernels that are captured in a graph make the GPU faster. The GPU does the same work; a graph saves
the host's part of each launch, which matters when kernels are shorter than that. Under MPS every process pays for its
own launches, so the scenario can also run several processes at once.

Measured: a chain of small kernels, each of which needs the result of the one before it, launched one by one and
replayed as one captured graph, by each of `--processes` at the same time. The chain counts: every value shows how many
kernels really ran, so that a graph which drops or repeats a kernel is found. The figures are in
measurements/pages/kernels.md, under Scenarios.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.work import EXACT, PERIOD
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import together
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import ratio

NAME = "graph"
MODES = ("launches", "graph")
WAIT_SECONDS = 120.0
"""More time than the passes take: a worker that hangs is an error."""


@dataclass(frozen=True, slots=True)
class GraphWork:
    """The work of one process: `kernels` in a pass, `passes` in each of `repeats`."""

    backend: str
    mode: str
    kernels: int
    elements: int
    passes: int
    repeats: int


@dataclass(frozen=True, slots=True)
class GraphTiming:
    """What one process measured."""

    backend: str
    timed: bool
    seconds: tuple[float, ...]
    """Seconds of each repeat."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", type=int, default=100, help="small kernels in the chain")
    parser.add_argument("--elements", type=int, default=1000, help="floats that each kernel works on")
    parser.add_argument("--passes", type=int, default=50, help="runs of the chain before the host waits")
    parser.add_argument("--repeats", type=int, default=5, help="the figures are medians of this many runs")
    parser.add_argument("--processes", type=int, default=1, help="processes that run the chain at the same time")


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, kernels=1, elements=1, passes=1, repeats=1, processes=1)
    counted = arguments.kernels * arguments.passes * (arguments.repeats + 2)
    if counted > EXACT - PERIOD:
        raise ValueError(
            f"--kernels {arguments.kernels} × --passes {arguments.passes} × (--repeats {arguments.repeats} + 2): "
            f"must be at most {EXACT - PERIOD}, which float can count"
        )
    before = list[float]()
    with progress(len(MODES), NAME) as advance:
        for mode in MODES:
            work = GraphWork(
                arguments.backend, mode, arguments.kernels, arguments.elements, arguments.passes, arguments.repeats
            )
            figures = together(measure, [work] * arguments.processes, stop=stop, seconds=WAIT_SECONDS)
            advance(1)
            kernels = arguments.kernels * arguments.passes
            # Of each pass, the mean of the processes, which run it at the same time.
            of_passes = zip(*(run.seconds for run in figures), strict=True)
            passes = [statistics.mean(seconds) / kernels * 1e6 for seconds in of_passes]
            slowest = max(statistics.median(run.seconds) for run in figures) / kernels * 1e6
            before = before or passes
            faster = [launched / replayed for launched, replayed in zip(before, passes, strict=True)]
            events.emit(
                "measured",
                mode=mode,
                backend=figures[0].backend,
                timed=figures[0].timed,
                processes=arguments.processes,
                kernels=arguments.kernels,
                **Spread.of(passes).rounded("us_per_kernel", 3),
                us_per_kernel_slowest=round(slowest, 3),
                **ratio("times_as_fast", faster, 2, figures[0].timed),
            )


def measure(worker: Worker, work: GraphWork) -> GraphTiming:
    """The target of one process. Raises WrongError unless every kernel ran exactly once."""
    with worker.gpu(work.backend) as backend:
        chain = backend.chain(work.kernels, work.elements)
        once = chain.replay if work.mode == "graph" else chain.launch
        chain.launch()  # loads the kernel
        once()  # captures the graph
        backend.synchronize()
        worker.start()
        seconds = []
        for _ in range(work.repeats):
            began = time.perf_counter()
            for _ in range(work.passes):
                worker.stop.check()
                once()
            backend.synchronize()
            seconds.append(time.perf_counter() - began)
        if wrong := chain.wrong(2 + work.passes * work.repeats):
            raise WrongError(f"{work.mode}: {wrong}")
        return GraphTiming(backend.name, backend.timed, tuple(seconds))
