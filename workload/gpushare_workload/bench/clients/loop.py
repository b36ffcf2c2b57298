"""The closed loop of one client: launch, wait, launch again, until the end of the window.

Guarantees: all clients of a run take their window from one clock (CLOCK_MONOTONIC, which the processes of a machine
share), so every launch that counts ran beside those of all others. A launch counts if it *ended* within the window:
launches that run at its start count, those that run at its end do not, and the two balance.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare_workload.bench.results.histogram import Histogram

NS = 1_000_000_000
SPIN_NS = 2_000_000
"""The end of the wait for the common start is a busy loop, because a sleep wakes up late."""


@dataclass(frozen=True, slots=True)
class Window:
    """Nanoseconds of CLOCK_MONOTONIC: clients start at `begin`; launches count from `count_from` to `end`."""

    begin: int
    count_from: int
    end: int

    @classmethod
    def of(cls, begin_seconds: float, warmup: float, seconds: float) -> "Window":
        begin = round(begin_seconds * NS)
        count_from = begin + round(warmup * NS)
        return cls(begin, count_from, count_from + round(seconds * NS))


@dataclass(frozen=True, slots=True)
class LoopResult:
    """The latencies of the launches that count, for each lane. `late_ns`: from the common start to the first launch."""

    latencies: tuple[Histogram, ...]
    late_ns: int


def closed_loop(
    launches: Sequence[Callable[[], None]],
    wait: Callable[[], None],
    window: Window,
    asked: Callable[[], bool],
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> LoopResult:
    """Launches on each lane, waits for all lanes, and repeats that. Ends early when `asked()` is true."""
    histograms = tuple(Histogram() for _ in launches)
    sleep(max(0, window.begin - clock() - SPIN_NS) / NS)
    while clock() < window.begin:
        pass
    late, starts = clock() - window.begin, [0] * len(launches)
    while True:
        for lane, launch in enumerate(launches):
            starts[lane] = clock()
            launch()
        wait()
        now = clock()
        if now >= window.end or asked():
            return LoopResult(histograms, late)
        if now >= window.count_from:
            for start, histogram in zip(starts, histograms, strict=True):
                histogram.record(now - start)
