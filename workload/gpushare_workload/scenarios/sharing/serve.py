"""serve: what latency does a service get on a shared GPU?

Commonly claimed: the latency is the mean time of a request, measured by a client that sends the next request after each
answer. Such a client slows down with its server and never sees the queue (coordinated omission). Here requests arrive
as a Poisson process at a set rate, and the latency of each counts from the moment when it was due: time in the queue is
time that somebody waits. Near its capacity a service's latency is mostly queue.

Measured: p50, p90 and p99 of the latency, the service time alone, how busy the GPU was meanwhile, and the number of
requests that were still waiting at the end, which count with the time that they have waited. For several pods beside
each other, give each the same `--start-at` and another `--seed`. Each request adds to its result, so that the check at
the end counts them.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.processes import common_start
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress

NAME = "serve"
PERCENTILES = (50, 90, 99)
MOST_REQUESTS = 10_000_000
"""The most that fit comfortably in memory."""
OVERTIME = 1.0
"""Requests that are due within the duration are served for this multiple of it after its end; then they are
unserved."""


@dataclass(slots=True)
class ServedRequests:
    """Times in seconds. `latencies` count from when a request was due; those of unserved requests up to the end."""

    latencies: list[float] = field(default_factory=list)
    services: list[float] = field(default_factory=list)
    unserved: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=100.0, metavar="PER_SECOND", help="rate of arrivals")
    parser.add_argument("--duration", type=float, default=10.0, metavar="SECONDS", help="how long requests arrive")
    parser.add_argument("--warmup", type=int, default=10, help="requests before the measurement")
    options.add_work_options(parser, Grid.HALF)
    options.add_kind_option(parser)
    common_start.add_argument(parser)


def run(
    arguments: argparse.Namespace,
    events: JsonLines,
    stop: Stop,
    open_backend: Callable[[str], Backend] = open_backend,
) -> None:
    options.check_work_options(arguments)
    check_bounds(arguments, warmup=0)
    for name in ("rate", "duration"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise ValueError(f"--{name} {getattr(arguments, name)}: must be more than 0")
    if arguments.rate * arguments.duration > MOST_REQUESTS:
        raise ValueError(
            f"--rate {arguments.rate} for --duration {arguments.duration} s: at most {MOST_REQUESTS} requests"
        )
    start_at = common_start.parse(arguments.start_at)
    due = [float(arrival) for arrival in poisson_arrivals(arguments.rate, arguments.duration, arguments.seed)]
    with closing(open_backend(arguments.backend)) as backend:
        task = backend.prepare(options.work_of(arguments, backend.device(), LoadKind(arguments.kind)))
        launches = 0

        def request() -> None:
            nonlocal launches
            launches += 1
            task.launch()
            backend.synchronize()

        for _ in range(arguments.warmup):
            request()
        watch = GpuWatch()
        common_start.wait(start_at, stop)
        events.emit("started", rate=arguments.rate, requests=len(due))
        with progress(len(due), NAME) as advance, watch as seen:
            served = serve(due, request, stop, arguments.duration * (1 + OVERTIME), advance)
        if wrong := task.wrong(launches):
            raise WrongError(wrong)
        events.emit(
            "measured",
            backend=backend.name,
            timed=backend.timed,
            kind=arguments.kind,
            grid=arguments.grid,
            rate=arguments.rate,
            requests=len(due),
            unserved=served.unserved,
            stopped=stop.asked(),
            latency=percentiles(served.latencies),
            service=percentiles(served.services),
            gpu_busy_percent=seen.busy_percent,
        )
        stop.check()


def poisson_arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Arrival times within [0, seconds) of a Poisson process: the gaps are exponential with mean 1/rate."""
    generator = np.random.default_rng(seed)
    expected = rate * seconds
    times = np.empty(0)
    last = 0.0
    while last < seconds:
        gaps = generator.exponential(1 / rate, max(16, math.ceil(expected + 4 * math.sqrt(expected))))
        times = np.concatenate([times, last + np.cumsum(gaps)])
        last = float(times[-1])
    kept: NDArray[np.float64] = times[times < seconds]
    return kept


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Latencies in ms by name: the percentiles by nearest rank, and the maximum; None without latencies."""
    if not seconds:
        return {**{f"p{percent}_ms": None for percent in PERCENTILES}, "max_ms": None}
    ranks = np.percentile(seconds, PERCENTILES, method="inverted_cdf")
    named = {f"p{percent}_ms": float(value) for percent, value in zip(PERCENTILES, ranks, strict=True)}
    return {name: round(value * 1000, 4) for name, value in (named | {"max_ms": max(seconds)}).items()}


def serve(
    due: list[float],
    request: Callable[[], None],
    stop: Stop,
    limit: float,
    advance: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> ServedRequests:
    """Serves one request after the other, none before it is `due` (seconds from now), for at most `limit` seconds."""
    served, began = ServedRequests(), clock()
    for number, moment in enumerate(due):
        if stop.wait(began + moment - clock()) or clock() - began > limit:
            now = clock() - began
            waiting = [now - arrival for arrival in due[number:] if arrival <= now]
            served.unserved = len(waiting)
            served.latencies += waiting
            break
        launched = clock()
        request()
        ended = clock()
        served.latencies.append(ended - began - moment)
        served.services.append(ended - launched)
        advance(1)
    return served
