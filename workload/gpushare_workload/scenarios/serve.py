"""serve: what latency does a service get on a shared GPU?

Commonly claimed: take the mean time of a request, measured by sending the next one when the last has come back. That
client slows down with its server and never sees the queue (coordinated omission). Here requests arrive on their own, as
a Poisson process at a set rate, and each one's latency counts from the moment at which it was due: time in the queue is
time that somebody waited. A service at 90 % of its capacity is mostly queue.

Measured: p50, p90 and p99 of the latency, the service time alone, and how many requests were still waiting when the
time was over; those count with the time that they have waited. For several pods beside each other, give each the same
`--start-at` and another `--seed`. Four beside each other on an H200 at 200 requests/s: p99 0.6 ms, as one alone. Twice
overloaded, the service time stays at 0.13 ms, and the latency goes to 3 s.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from gpushare_workload import load, start
from gpushare_workload.arrivals import percentiles, poisson
from gpushare_workload.backend import open_backend
from gpushare_workload.backend.work import Grid, Kind
from gpushare_workload.bounds import at_least
from gpushare_workload.progress import progress
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "serve"
MOST = 10_000_000
"""Requests: as many as fit comfortably in memory."""
OVERTIME = 1.0
"""Requests that are due within the duration are served for as long again; what is left then is told as unserved."""


@dataclass(slots=True)
class Served:
    """All in seconds. `latencies` count from when the request was due; those of the unserved are what they waited."""

    latencies: list[float] = field(default_factory=list)
    services: list[float] = field(default_factory=list)
    unserved: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=100.0, metavar="PER_SECOND", help="requests that arrive")
    parser.add_argument("--duration", type=float, default=10.0, metavar="SECONDS", help="for which they arrive")
    parser.add_argument("--warmup", type=int, default=10, help="requests before the first that counts")
    load.add_arguments(parser, Grid.HALF)
    load.add_kind(parser)
    start.add_argument(parser)


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    load.check(arguments)
    at_least(arguments, warmup=0)
    for name in ("rate", "duration"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise ValueError(f"--{name} {getattr(arguments, name)}: must be more than 0")
    if arguments.rate * arguments.duration > MOST:
        raise ValueError(f"--rate {arguments.rate} for --duration {arguments.duration} s: at most {MOST} requests")
    start_at = start.parse(arguments.start_at)
    due = [float(it) for it in poisson(arguments.rate, arguments.duration, arguments.seed)]
    with closing(open_backend(arguments.backend)) as backend:
        task = backend.prepare(load.work(arguments, backend.device(), Kind(arguments.kind)))

        def request() -> None:
            task.launch()
            backend.synchronize()

        for _ in range(arguments.warmup):
            request()
        start.wait(start_at, stop)
        report.emit("started", rate=arguments.rate, requests=len(due))
        with progress(len(due), NAME) as advance:
            served = serve(due, request, stop, arguments.duration * (1 + OVERTIME), advance)
        if wrong := task.wrong():
            raise WrongError(wrong)
        report.emit(
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
        )


def serve(
    due: list[float],
    request: Callable[[], None],
    stop: Stop,
    limit: float,
    advance: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Served:
    """Serves one request after the other, none before it is due (seconds from now), until `limit` seconds are over."""
    served, began = Served(), clock()
    for number, moment in enumerate(due):
        if stop.wait(began + moment - clock()) or clock() - began > limit:
            now = clock() - began
            waiting = [now - it for it in due[number:] if it <= now]
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
