"""The closed loop of one client: submit a round of launches, wait for it, submit the next, until the window ends.

Guarantees: all clients of a run take their window from one clock (CLOCK_MONOTONIC, which the processes of a machine
share), so every launch that counts ran beside those of all others. A round counts with the part of its time that lies
within the window. So neither a round that is longer than the window nor a window that cuts a round falsifies a rate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare_workload.results.histogram import Histogram

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

    def part(self, start: int, end: int) -> float:
        """The part from 0 to 1 of the time from `start` to `end` that launches count in."""
        inside = min(end, self.end) - max(start, self.count_from)
        return max(0, inside) / (end - start) if end > start else float(self.count_from <= start < self.end)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """`late_ns`: from the common start to the first launch."""

    latencies: tuple[Histogram, ...]
    """One for each lane, of the rounds that lie at least partly within the window."""
    counted: tuple[float, ...]
    """The rounds of each lane within the window, parts included."""
    submitted: int
    """Rounds on each lane, those of the warm-up included."""
    late_ns: int


def closed_loop(
    rounds: Sequence[Callable[[], None]],
    wait: Callable[[], None],
    window: Window,
    asked: Callable[[], bool],
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> LoopResult:
    """Submits a round on each lane, waits for all lanes, and repeats that. Ends early when `asked()` is true."""
    histograms, counted, submitted = tuple(Histogram() for _ in rounds), [0.0] * len(rounds), 0
    sleep(max(0, window.begin - clock() - SPIN_NS) / NS)
    while clock() < window.begin:
        pass
    late, starts = clock() - window.begin, [0] * len(rounds)
    while True:
        for lane, submit in enumerate(rounds):
            starts[lane] = clock()
            submit()
        wait()
        submitted += 1
        now = clock()
        if now > window.count_from:
            for lane, start in enumerate(starts):
                histograms[lane].record(now - start)
                counted[lane] += window.part(start, now)
        if now >= window.end or asked():
            return LoopResult(histograms, tuple(counted), submitted, late)
