"""swell: what if the memory of programs varies?

Commonly claimed: a GPU's memory must hold the sum of what all programs ever need. It must hold the largest sum at any
moment. Programs whose peaks come at different times fit where the sum of their peaks does not, as long as each of them
frees what it does not need: a caching allocator (CuPy's pool, PyTorch's) keeps its peak for good, and its neighbours
get error 2. A grant is an upper bound for each process. With `clients.memory.overcommit` the grants of a share may add
up to more than the GPU has, and this is what happens then.

What runs: `--processes` hold `--low` of the memory that is free to one of them. Over and over each allocates up to
`--high`, computes, frees, and computes for as long with what it keeps. A refused allocation is tried again after
`--retry` ms. Three ways: all peaks `together`, `in-turns` (each process begins another part of a cycle later), and
`kept`, where nobody frees its peak.

Measured: cycles per second, allocations that were refused, the part of the time spent waiting for memory, the time of
one allocation, the sum of the peaks, and the most of the GPU's memory that was in use.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpushare_workload.backend import Backend, OutOfMemoryError
from gpushare_workload.backend.interface import identity
from gpushare_workload.events import JsonLines
from gpushare_workload.gpus.grant import MIB
from gpushare_workload.gpus.utilisation import GpuWatch
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.options import check_bounds
from gpushare_workload.scenarios.progress import progress
from gpushare_workload.scenarios.repeats import summarised

NAME = "swell"
WAIT_SECONDS = 60.0
KERNEL_MS, SHORTEST_MS = 5.0, 0.1


class PeakTimes(StrEnum):
    """The times at which the processes need their peaks."""

    TOGETHER = "together"
    IN_TURNS = "in-turns"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class SwellResult:
    """What one process reports; memory in bytes, times in seconds."""

    identity: dict[str, str | bool]
    cycles: int
    refused: int
    waited: float
    allocations: tuple[float, ...]
    """The time of each successful allocation of a peak."""
    peak: int
    """The most that it held, without its context."""
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, default=2, help="processes on the GPU (default: %(default)s)")
    parser.add_argument("--low", type=float, default=10.0, metavar="PERCENT", help="of the free memory, held always")
    parser.add_argument("--high", type=float, default=60.0, metavar="PERCENT", help="of the free memory, at a peak")
    parser.add_argument("--busy", type=float, default=100.0, metavar="MS", help="length of each half of a cycle")
    parser.add_argument("--retry", type=float, default=5.0, metavar="MS", help="wait after a refused allocation")
    parser.add_argument("--duration", type=float, default=3.0, metavar="SECONDS", help="time of each run")
    parser.add_argument("--repeats", type=int, default=3, help="the figures are medians of this many runs")
    parser.add_argument(
        "--peaks",
        nargs="+",
        type=PeakTimes,
        choices=list(PeakTimes),
        default=list(PeakTimes),
        help="when they need it (all)",
    )


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    check_bounds(arguments, processes=1, low=0, high=0, busy=KERNEL_MS, retry=1, duration=0.05, repeats=1)
    if not arguments.low < arguments.high <= 100:
        raise ValueError(f"--high {arguments.high:g}: must be above --low {arguments.low:g}, and at most 100")
    by_peaks: dict[PeakTimes, list[dict[str, Any]]] = {peaks: [] for peaks in arguments.peaks}
    with progress(len(by_peaks) * arguments.repeats, NAME) as advance:
        for _ in range(arguments.repeats):
            for peaks in by_peaks:
                by_peaks[peaks].append(_once(arguments, peaks, stop))
                advance(1)
    for peaks, runs in by_peaks.items():
        events.emit("measured", peaks=peaks, processes=arguments.processes, **summarised(runs))


def _once(arguments: argparse.Namespace, peaks: PeakTimes, stop: Stop) -> dict[str, Any]:
    with Team(stop) as team:
        for _ in range(arguments.processes):
            team.start(swell, arguments, peaks)
        # All see the same GPU, or have equal limits: the least counts, since contexts take memory too.
        free: int = min(team.gather(WAIT_SECONDS))
        team.send_all(free)
        watch = GpuWatch()
        team.go()
        with watch as seen:
            team.gather(arguments.duration + WAIT_SECONDS)
            team.send_all(None)
            results: list[SwellResult] = team.results(WAIT_SECONDS)
    return figures(results, free, seen.peak_mib)


def figures(results: list[SwellResult], free: int, gpu_peak_mib: int | None) -> dict[str, Any]:
    """`free`: bytes that one process could have had; `gpu_peak_mib` as NVML saw it. Pure."""
    seconds = max(result.seconds for result in results)
    allocations = [each for result in results for each in result.allocations]
    return {
        **results[0].identity,
        "cycles_per_second": sum(result.cycles for result in results) / seconds,
        "fewest_cycles": min(result.cycles for result in results),
        "refused": float(sum(result.refused for result in results)),
        "waited_part": sum(result.waited for result in results) / sum(result.seconds for result in results),
        "allocation_ms": statistics.median(allocations) * 1000 if allocations else None,
        "free_mib": free // MIB,
        "sum_of_peaks_mib": sum(result.peak for result in results) // MIB,
        "most_in_use_mib": gpu_peak_mib,
    }


def swell(worker: Worker, arguments: argparse.Namespace, peaks: PeakTimes) -> SwellResult:
    """The target of one process."""
    with worker.gpu(arguments.backend) as backend:
        worker.send(backend.device().free)
        free = worker.receive()
        low, high = (int(free * percent / 100) for percent in (arguments.low, arguments.high))
        held = backend.allocate(low) if low else None
        worker.start()
        cycle = Cycle(backend, worker.stop, high - low, arguments.busy / 1000, arguments.retry / 1000)
        late = 2 * cycle.busy * worker.index / arguments.processes if peaks is PeakTimes.IN_TURNS else 0.0
        cycle.run(arguments.duration, late, kept=peaks is PeakTimes.KEPT)
        worker.send(None)
        worker.receive()  # once all have ended: what is kept stays kept for one that began later, too
        cycle.close()
        if held is not None:
            backend.free(held)
        return SwellResult(
            identity(backend),
            cycle.cycles,
            cycle.refused,
            cycle.waited,
            tuple(cycle.allocations),
            high if cycle.allocations else low,
            cycle.seconds,
        )


class Cycle:
    """One process: allocate `extra` bytes, compute for `busy` seconds, free, and compute for as long again."""

    def __init__(
        self,
        backend: Backend,
        stop: Stop,
        extra: int,
        busy: float,
        retry: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`retry`: seconds between a refused allocation and the next."""
        self.busy = busy
        self._backend, self._stop, self._extra, self._retry, self._clock = backend, stop, extra, retry, clock
        self.cycles = self.refused = 0
        self.waited = self.seconds = 0.0
        """Seconds that passed before allocations which were refused at first, and in all."""
        self.allocations: list[float] = []
        self._kept: int | None = None

    def run(self, seconds: float, late: float, kept: bool) -> None:
        """Runs for `seconds`, the first `late` of them without a peak. `kept`: the first peak stays until close()."""
        began = self._clock()
        end = began + seconds
        self._compute(late, end)
        peak: int | None = None
        while self._clock() < end and not self._stop.asked():
            if peak is None:
                peak = self._allocate(end)
            if peak is None:
                break
            self._compute(self.busy, end)
            if not kept:
                self._backend.free(peak)
                peak = None
            self._compute(self.busy, end)
            self.cycles += 1
        self._kept = peak
        self.seconds = self._clock() - began

    def close(self) -> None:
        """Frees a peak that was kept."""
        if self._kept is not None:
            self._backend.free(self._kept)
            self._kept = None

    def _allocate(self, end: float) -> int | None:
        """The handle; None if it was still refused at `end`."""
        asked = self._clock()
        while True:
            tried = self._clock()
            try:
                handle = self._backend.allocate(self._extra)
            except OutOfMemoryError:
                self.refused += 1
                if self._stop.wait(self._retry) or self._clock() >= end:
                    self.waited += self._clock() - asked
                    return None
            else:
                self.waited += tried - asked
                self.allocations.append(self._clock() - tried)
                return handle

    def _compute(self, seconds: float, end: float) -> None:
        """Keeps the GPU at work for about that long, in short kernels."""
        end = min(end, self._clock() + seconds)
        while (left := end - self._clock()) > 0 and not self._stop.asked():
            self._backend.spin(min(KERNEL_MS, max(SHORTEST_MS, left * 1000)))
            self._backend.synchronize()
