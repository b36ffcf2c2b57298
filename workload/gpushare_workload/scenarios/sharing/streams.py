"""streams: do streams overlap kernels, and copies with kernels?

Commonly claimed: kernels on different streams run at the same time. They do so only if the GPU has room for them: small
kernels overlap, kernels that fill all SMs run one after the other on any streams. Copies overlap with kernels only to
and from pinned memory, and only on other streams. So the overlap is measured here, by events on each stream.

Measured: the same kernels on one stream and spread over several, as the ms from the first start to the last end. Then
chunks that are copied in, processed and copied out: on one stream, on several, and on several from pageable memory. All
results are checked to the last bit. Under MPS fewer streams run at once, since a client has few connections to the GPU
(CUDA_DEVICE_MAX_CONNECTIONS). The figures are in measurements/pages/kernels.md, under Scenarios.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.backend.interface import Span
from gpushare_workload.backend.work import EXACT, Grid, LoadKind
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import ratio

NAME = "streams"
LARGEST_VALUE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", type=int, default=8, help="kernels that are launched")
    parser.add_argument("--streams", type=int, default=8, help="streams to spread them over")
    # Long kernels: otherwise the host's launches, a few microseconds each, would decide what overlaps.
    options.add_work_options(parser, Grid.SMALL, iterations=65536)
    options.add_kind_option(parser)
    parser.add_argument("--chunks", type=int, default=16, help="chunks that are copied in and out; 0: without copies")
    parser.add_argument("--chunk-elements", type=int, default=1 << 20, help="floats in each chunk")
    parser.add_argument("--chunk-iterations", type=int, default=2048, help="length of the kernel on each chunk")
    parser.add_argument("--repeats", type=int, default=5, help="the figures are medians of this many runs")


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    open_backend: Callable[[str], Backend] = open_backend,
) -> None:
    check_bounds(arguments, kernels=0, streams=1, chunks=0, chunk_elements=1, chunk_iterations=1, repeats=1)
    options.check_work_options(arguments)
    if arguments.chunk_iterations > EXACT - LARGEST_VALUE:
        raise ValueError(f"--chunk-iterations {arguments.chunk_iterations}: must be at most {EXACT - LARGEST_VALUE}")
    with closing(open_backend(arguments.backend)) as backend, progress(5 * arguments.repeats, NAME) as advance:
        _kernels(backend, arguments, events, stop, advance)
        if arguments.chunks:
            _chunks(backend, arguments, events, stop, advance)


def _kernels(
    backend: Backend, arguments: argparse.Namespace, events: JsonLines, stop: Stop, advance: Callable[[float], None]
) -> None:
    work = options.work_of(arguments, backend.device(), LoadKind(arguments.kind))
    with ExitStack() as stack:
        tasks = [stack.enter_context(closing(backend.prepare(work))) for _ in range(arguments.kernels)]
        backend.timed_launches([(task, lane) for lane, task in enumerate(tasks)])  # loads the kernel, makes the streams
        on_one = list[float]()
        for streams in (1, arguments.streams):
            runs: list[list[Span]] = []
            for _ in range(arguments.repeats):
                stop.check()
                runs.append(backend.timed_launches([(task, at % streams) for at, task in enumerate(tasks)]))
                advance(1)
            extents = [extent_ms(spans) for spans in runs]
            on_one = on_one or extents
            events.emit(
                "measured",
                what="kernels",
                backend=backend.name,
                timed=backend.timed,
                streams=streams,
                kernels=arguments.kernels,
                kind=arguments.kind,
                grid=arguments.grid,
                **_figures(on_one, extents, backend.timed),
            )
        for number, task in enumerate(tasks):
            if wrong := task.wrong(1 + 2 * arguments.repeats):
                raise WrongError(f"kernel {number}: {wrong}")


def _chunks(
    backend: Backend, arguments: argparse.Namespace, events: JsonLines, stop: Stop, advance: Callable[[float], None]
) -> None:
    shape = (arguments.chunks, arguments.chunk_elements)
    numbers = np.random.default_rng(arguments.seed).integers(0, LARGEST_VALUE, shape)
    data = numbers.astype(np.float32)
    expected = data + np.float32(arguments.chunk_iterations)
    on_one = list[float]()
    for streams, pinned in ((1, True), (arguments.streams, True), (arguments.streams, False)):
        milliseconds = []
        for _ in range(arguments.repeats):
            stop.check()
            done, took = backend.process_chunks(data, arguments.chunk_iterations, streams, pinned)
            if not np.array_equal(done, expected):
                raise WrongError(f"chunks on {streams} streams: {np.count_nonzero(done != expected)} values are wrong")
            milliseconds.append(took)
            advance(1)
        on_one = on_one or milliseconds
        events.emit(
            "measured",
            what="copies and kernels",
            backend=backend.name,
            timed=backend.timed,
            streams=streams,
            pinned=pinned,
            chunks=arguments.chunks,
            chunk_bytes=4 * arguments.chunk_elements,
            **_figures(on_one, milliseconds, backend.timed),
        )


def extent_ms(spans: Sequence[Span]) -> float:
    """Milliseconds from the first start to the last end; 0 without spans."""
    return max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)


def _figures(on_one: Sequence[float], on_several: Sequence[float], timed: bool) -> dict[str, Any]:
    """Over all runs: ms, and how many times as fast as the same run on one stream. No ratio where nothing took time."""
    ratios = [before / after for before, after in zip(on_one, on_several, strict=True) if after]
    return {**Spread.of(on_several).rounded("wall_ms", 4), **ratio("times_as_fast", ratios, 2, timed)}
