"""Fixed amounts of work: the operations and bytes of one launch, and the result of any number of launches. Pure.

Results are cumulative: each launch adds to its output (a transfer moves it on by one place), so that the result says
how many launches ran. A launch that was dropped, or ran twice, is a wrong result.

A launch is a number of blocks of 256 threads. Every block of one kind does the same work, so small, half and saturating
launches differ only in how much of the GPU they can fill.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Counts = NDArray[np.uint32]
"""Sums of whole numbers, modulo 2^32."""

H200_SMS = 132
"""SMs that count where those of the whole GPU are unknown, so that grids have the same size on every machine."""
BLOCK = 256
CHAINS = 4
"""Chains of fused multiply-adds per thread: a single chain would wait for its own latency."""
FACTOR = 3.0
PERIOD = 1024
REPEATS = 7
EXACT = 1 << 24
"""A float represents all whole numbers up to this one."""
MOST_ITERATIONS = EXACT // CHAINS - PERIOD - CHAINS


class LoadKind(StrEnum):
    """The part of the machine that bounds a launch: arithmetic, device memory, or the link to the host."""

    COMPUTE = "compute"
    MEMORY = "memory"
    TRANSFER = "transfer"


class Grid(StrEnum):
    """How much of the whole GPU one launch can fill."""

    SMALL = "small"
    HALF = "half"
    SATURATING = "saturating"

    def blocks(self, sms: int) -> int:
        """Eight blocks, one for every second SM, or eight for each of the `sms` of the whole GPU."""
        return {Grid.SMALL: 8, Grid.HALF: max(1, sms // 2), Grid.SATURATING: 8 * sms}[self]


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """What each client runs in a closed loop: `depth` launches, one by one or as one captured `graph`, and a wait."""

    kind: LoadKind
    grid: Grid
    depth: int = 1
    graph: bool = False

    def __str__(self) -> str:
        """The load in words, such as `compute small, depth 16 (graph)`."""
        return f"{self.kind.value} {self.grid.value}, depth {self.depth}{' (graph)' if self.graph else ''}"


@dataclass(frozen=True, slots=True)
class Work:
    """One launch. `iterations` apply to compute alone, `elements` (floats per block and array) to the other two."""

    kind: LoadKind
    blocks: int
    iterations: int = 8192
    elements: int = 32768

    def __post_init__(self) -> None:
        """Raises ValueError naming the figure that is out of bounds."""
        if self.blocks < 1 or self.elements < 1:
            raise ValueError(f"{self.blocks} blocks of {self.elements} elements: each must be at least 1")
        if not 1 <= self.iterations <= MOST_ITERATIONS:
            raise ValueError(
                f"{self.iterations} iterations: must be from 1 to {MOST_ITERATIONS}, which float can count"
            )

    @property
    def threads(self) -> int:
        return self.blocks * BLOCK

    @property
    def values(self) -> int:
        """Floats in each array of a memory or transfer launch."""
        return self.blocks * self.elements

    @property
    def flops(self) -> int:
        """Floating-point operations of one launch; a fused multiply-add counts as two."""
        if self.kind is LoadKind.COMPUTE:
            return self.threads * CHAINS * self.iterations * 2
        return self.values * 2 if self.kind is LoadKind.MEMORY else 0

    @property
    def bytes(self) -> int:
        """Bytes of one launch: through device memory (three reads, one write), or over the host link both ways."""
        if self.kind is LoadKind.MEMORY:
            return self.values * 4 * 4
        return self.values * 2 * 4 if self.kind is LoadKind.TRANSFER else 0

    @property
    def footprint(self) -> int:
        """Bytes of device memory that the work occupies."""
        arrays = {LoadKind.COMPUTE: self.threads, LoadKind.MEMORY: 3 * self.values, LoadKind.TRANSFER: self.values}
        return arrays[self.kind] * 4

    def inputs(self) -> tuple[Floats, Floats]:
        """The two arrays that a memory launch reads, with different periods."""
        left = np.arange(PERIOD, dtype=np.float32)
        return np.resize(left, self.values), np.resize(np.repeat(left, REPEATS), self.values)

    def carried(self) -> Counts:
        """What a transfer copies to the GPU before its first launch."""
        return np.arange(self.values, dtype=np.uint32)

    def expected(self, launches: int) -> Counts:
        """The result of so many launches, exact to the last bit."""
        if self.kind is LoadKind.TRANSFER:
            return np.roll(self.carried(), -(launches % self.values))
        result = self._of_one_launch()
        # In place: a saturating launch works on more than 100 MiB, and pods have memory limits.
        result *= np.uint32(launches % (1 << 32))
        return result

    def _of_one_launch(self) -> Counts:
        if self.kind is LoadKind.COMPUTE:
            thread = np.arange(self.threads, dtype=np.int64) % PERIOD
            ends = CHAINS * (thread + self.iterations) + CHAINS * (CHAINS - 1) // 2
            return ends.astype(np.uint32)
        left, right = self.inputs()
        right *= np.float32(FACTOR)
        right += left
        return right.astype(np.uint32)


def first_difference(got: NDArray[Any], expected: NDArray[Any]) -> str | None:
    """A sentence about the first wrong value, or None when all are right."""
    if got.shape != expected.shape:
        return f"{got.shape} values instead of {expected.shape}"
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return None
    at = int(wrong[0])
    return f"{len(wrong)} of {len(expected)} values are wrong; the first, at {at}, is {got[at]!r}, not {expected[at]!r}"


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that the whole GPU can do; None if unknown.

    `flops` in single-precision operations per second, `bandwidth` of device memory and `link` to the host and back
    together in bytes per second, `cache` (L2) in bytes.
    """

    flops: float | None = None
    bandwidth: float | None = None
    link: float | None = None
    cache: int | None = None


def implausible(work: Work, launches_per_second: float, peaks: Peaks) -> str | None:
    """Why all clients of one GPU together cannot reach that rate, or None when they can.

    Memory work that fits the cache may be faster than the device memory.
    """
    rates = [("FLOP/s", work.flops, peaks.flops)]
    if work.kind is LoadKind.TRANSFER:
        rates.append(("bytes/s over the host link", work.bytes, peaks.link))
    elif peaks.cache is not None and work.footprint > 2 * peaks.cache:
        rates.append(("bytes/s of device memory", work.bytes, peaks.bandwidth))
    for unit, each, most in rates:
        if most is not None and each * launches_per_second > most:
            return f"{each * launches_per_second:.3g} {unit} are above the GPU's {most:.3g}"
    return None
