"""overlap: do kernels of different processes run at the same time, and on which SMs?

Commonly claimed: a higher throughput shows that kernels overlap. It also rises when a GPU merely switches less. Here
each launch writes down when it began and ended, by the GPU's own clock, which all processes share, and on which SMs its
blocks ran; a time slice that ended in mid-kernel is found as a gap between two looks at that clock.

Measured: launches per second of one process alone and of `--processes` at once, at each of `--threads`; how many
processes ran a kernel at the same moment (`at_once`: the mean over the time in which any of them did, and the most:
time slices give 1, MPS gives more); `any_running_percent`, that time as a part of the time in which all have records;
how many SMs each of them used, and how many were used by more than one. `timeline` has the first launches for a
picture. Every launch adds to its result, so that the check at the end counts them.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from gpushare.kubectl.rules.trial.spread import Spread
from gpushare_workload.backend.interface import LaunchRecord
from gpushare_workload.backend.work import Grid, LoadKind
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.mps.modes import limited, reachable_daemon
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios import options
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.sharing import concurrency
from gpushare_workload.scenarios.sharing.concurrency import Concurrency

NAME = "overlap"
MOST_PROCESSES, MOST_RECORDS, MOST_DEPTH = 48, 100_000, 1024
LEAD_SECONDS = 0.05
WAIT_SECONDS = 60.0
SHORTEST_SECONDS = 0.01
TIMELINE_US, TIMELINE_LAUNCHES = 3000.0, 400
"""The picture: its length, and the most launches in it."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One process in one run."""

    launches_per_second: float
    records: tuple[LaunchRecord, ...]


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """What one process reports when it is ready."""

    backend: str
    timed: bool
    sms: int | None
    """The SMs that CUDA shows the process: its limit."""


Run = tuple[RecordedRun, ...]
"""The figures of each process."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, default=2, help="processes that run at once (default: %(default)s)")
    options.add_work_options(parser, Grid.SMALL, iterations=20480)
    parser.add_argument("--depth", type=int, default=1, help="launches between two waits (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=0.5, metavar="SECONDS", help="time of each run")
    parser.add_argument("--records", type=int, default=1000, help="launches of a process that are recorded in each run")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs")
    options.add_threads_option(parser)


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    options.check_work_options(arguments)
    check_bounds(arguments, processes=1, depth=1, records=1, repeats=1, duration=SHORTEST_SECONDS)
    for name, most in (("processes", MOST_PROCESSES), ("records", MOST_RECORDS), ("depth", MOST_DEPTH)):
        if getattr(arguments, name) > most:
            raise ValueError(f"--{name} {getattr(arguments, name)}: must be at most {most}")
    options.check_threads(arguments.threads, reachable_daemon() is not None)
    sharing = "time-slicing" if reachable_daemon() is None else "mps"
    events.emit("started", sharing=sharing, processes=arguments.processes)
    counts = sorted({1, arguments.processes})
    with progress(len(arguments.threads) * len(counts) * arguments.repeats, NAME) as advance:
        for percent in arguments.threads:
            with Team(stop) as team:
                for _ in range(arguments.processes):
                    team.start(serve, arguments, environment=limited(percent))
                team.go()
                infos: list[RecordingInfo] = team.gather(WAIT_SECONDS)
                runs: dict[int, list[Run]] = {count: [] for count in counts}
                for _ in range(arguments.repeats):
                    for count in counts:
                        runs[count].append(_run(team, count, arguments.duration))
                        advance(1)
                team.finish(WAIT_SECONDS)
            for count in counts:
                _emit(infos[0], sharing, percent, arguments, runs[count], events)


def serve(worker: Worker, arguments: argparse.Namespace) -> None:
    """The target of one process. It runs whenever it is sent a begin (CLOCK_MONOTONIC) and seconds, until it is sent
    None. Raises WrongError.
    """
    with worker.gpu(arguments.backend) as backend:
        device = backend.device()
        work = options.work_of(arguments, device, LoadKind.COMPUTE)
        with closing(backend.record(work, 1)) as first:
            first.launch()  # loads the kernel
            backend.synchronize()
        worker.start()
        worker.send(RecordingInfo(backend.name, backend.timed, device.sms))
        while (request := worker.receive()) is not None:
            begin, seconds = request
            with closing(backend.record(work, arguments.records)) as recording:
                launches = 0
                worker.stop.wait(begin - time.monotonic())
                while True:
                    for _ in range(arguments.depth):
                        recording.launch()
                    backend.synchronize()
                    launches += arguments.depth
                    if time.monotonic() >= begin + seconds or worker.asked():
                        break
                rate = launches / (time.monotonic() - begin)
                if wrong := recording.wrong(launches):
                    raise WrongError(wrong)
                worker.send(RecordedRun(rate, tuple(recording.records())))


def _run(team: Team, processes: int, seconds: float) -> Run:
    begin = time.monotonic() + LEAD_SECONDS
    requests = dict.fromkeys(range(processes), (begin, seconds))
    return tuple(team.ask(requests, seconds + WAIT_SECONDS).values())


def _emit(
    info: RecordingInfo,
    sharing: str,
    percent: float,
    arguments: argparse.Namespace,
    runs: Sequence[Run],
    events: JsonLines,
) -> None:
    recorded = [[process.records for process in run] for run in runs]
    figures = [concurrency.of(records) for records in recorded]
    rates = [sum(process.launches_per_second for process in run) for run in runs]
    sms = [concurrency.sms(records) for records in recorded]
    common = {
        "backend": info.backend,
        "timed": info.timed,
        "sharing": sharing,
        "threads_percent": percent,
        "processes": len(runs[0]),
        "grid": arguments.grid,
        "depth": arguments.depth,
    }
    events.emit(
        "measured",
        **common,
        repeats=len(runs),
        **Spread.of(rates).rounded("launches_per_second", 1),
        **concurrency_of(figures),
        sms_shown=info.sms,
        sms_of_each=[len(each) for each in sms[-1]],
        sms_in_all=len(frozenset().union(*sms[-1])),
        sms_of_several=len(concurrency.of_several(sms[-1])),
        sm_numbers=[sorted(each) for each in sms[-1]],
    )
    if len(runs[0]) > 1:
        pieces = concurrency.timeline(recorded[-1], TIMELINE_US, TIMELINE_LAUNCHES)
        events.emit("timeline", **common, microseconds=[[index, *piece] for index, *piece in pieces])


def concurrency_of(runs: Sequence[Concurrency]) -> dict[str, float]:
    """The fields that say how many processes ran at once: the median over the runs, and the extremes."""
    means = Spread.of([run.mean for run in runs]).rounded("at_once", 3)
    running = Spread.of([100 * run.running_share for run in runs]).rounded("any_running_percent", 1)
    return means | {"at_once_most": max(run.most for run in runs)} | running
