"""A long array in chunks, and the three steps for each chunk: prepare, compute, finish.

Guarantees: a chunk depends only on the seed and its number, so any process can prepare any chunk, and one process gives
the same results as many.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend import Backend
from gpushare_workload.backend.filters import TAPS, ChunkFilter, taps
from gpushare_workload.backend.work import Floats
from gpushare_workload.events import WrongError

Buffers = NDArray[np.float32]
"""(3, elements of a whole chunk): left, right, result."""
Readings = NDArray[np.int16]
LEFT, RIGHT, RESULT = range(3)
TOLERANCE = 1e-3
"""Tolerance of normalised values, which lie around 0: float compared with double."""
MISSING = -32768
"""What a sensor reports when it has no reading."""
MISSING_EVERY = 997
"""One reading of so many is missing, on average."""
SPAN = 2000
"""Readings lie between minus and plus this."""
DESPIKED = 3.0
"""Standard deviations from which on a prepared value is cut."""
CHECKED = 512
"""Values of a convolved chunk that are computed again, apart from its first ones."""
STEPS = 1000
"""Stored values for each 1.0."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How an array of `elements` floats is cut into chunks."""

    filter: ChunkFilter
    elements: int
    chunk: int
    """Elements in each chunk; the last chunk may have fewer."""
    seed: int
    pieces: int = 1
    """Pieces in which the GPU's stage copies and computes a chunk; more than one uses page-locked memory."""

    @property
    def chunks(self) -> int:
        return -(-self.elements // self.chunk)

    def size(self, index: int) -> int:
        """Elements in that chunk."""
        return min(self.chunk, self.elements - index * self.chunk)


@dataclass(frozen=True, slots=True)
class FinishedChunk:
    """What the last step makes of a chunk."""

    squares: float
    """The sum of the squares of the result."""
    stored: int
    """Bytes of the result as it would be stored; 0 for a filter whose result is only checked."""


def prepare(plan: ChunkPlan, index: int, buffers: Buffers) -> None:
    """Fills the inputs on the CPU. For SIGNAL these are raw readings, decoded, filtered and normalised."""
    numbers, size = np.random.default_rng((plan.seed, index)), plan.size(index)
    match plan.filter:
        case ChunkFilter.ADD:
            for row in (LEFT, RIGHT):
                numbers.random(dtype=np.float32, out=buffers[row, :size])
        case ChunkFilter.NORMALISE:
            numbers.standard_normal(dtype=np.float32, out=buffers[LEFT, :size])
            buffers[LEFT, :size] *= np.float32(3.0)
            buffers[LEFT, :size] += np.float32(10.0)
        case ChunkFilter.SIGNAL:
            clean(readings(numbers, size), buffers[LEFT, :size])


def readings(numbers: np.random.Generator, size: int) -> Readings:
    """Raw readings, in place of a file: whole numbers up to SPAN, some of them missing."""
    raw: Readings = numbers.integers(-SPAN, SPAN, size, dtype=np.int16, endpoint=True)
    raw[numbers.integers(0, size, size // MISSING_EVERY)] = MISSING
    return raw


def clean(raw: Readings, into: Floats) -> None:
    """Decodes the readings, puts the mean of the others in the place of missing ones, normalises, and cuts outliers."""
    missing = raw == MISSING
    into[...] = raw
    there = len(raw) - int(np.count_nonzero(missing))
    into[missing] = 0.0
    mean = float(into.sum(dtype=np.float64)) / there if there else 0.0
    into[missing] = mean
    into -= np.float32(mean)
    deviation = float(np.sqrt(np.mean(np.square(into), dtype=np.float64)))
    if deviation:
        into /= np.float32(deviation)
    np.clip(into, -DESPIKED, DESPIKED, out=into)


def compute(plan: ChunkPlan, index: int, buffers: Buffers, backend: Backend) -> None:
    """Computes the result on the GPU."""
    size = plan.size(index)
    rows = (LEFT, RIGHT) if plan.filter is ChunkFilter.ADD else (LEFT,)
    backend.filter_chunk(plan.filter, [buffers[row, :size] for row in rows], buffers[RESULT, :size], plan.pieces)


def finish(plan: ChunkPlan, index: int, buffers: Buffers) -> FinishedChunk:
    """Compares the result with NumPy's and compresses a SIGNAL, as for storage. Raises WrongError if they differ."""
    left, right, result = (buffers[row, : plan.size(index)] for row in (LEFT, RIGHT, RESULT))
    stored = 0
    match plan.filter:
        case ChunkFilter.ADD:
            matches = bool(np.array_equal(result, left + right))
        case ChunkFilter.NORMALISE:
            values = left.astype(np.float64)
            deviation = values.std()
            expected = (values - values.mean()) / deviation if deviation else np.zeros(len(values))
            matches = bool(np.allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE))
        case ChunkFilter.SIGNAL:
            matches = _convolved(left, result)
            stored = len(zlib.compress(np.rint(result * np.float32(STEPS)).astype(np.int32).tobytes(), 1))
    if not matches:
        raise WrongError(f"chunk {index} of {plan.chunks}: {plan.filter} differs from NumPy's")
    return FinishedChunk(float(np.square(result, dtype=np.float64).sum()), stored)


def _convolved(values: Floats, result: Floats) -> bool:
    """Whether the first results, the last one, and others between them are those of the filter, in double."""
    coefficients, size = taps().astype(np.float64), len(values)
    padded = np.concatenate([np.zeros(TAPS - 1), values.astype(np.float64)])
    places = np.unique([*range(min(size, TAPS)), *np.linspace(0, size - 1, CHECKED).astype(int)])
    expected = [padded[place : place + TAPS] @ coefficients[::-1] for place in places]
    return bool(np.allclose(result[places], expected, rtol=TOLERANCE, atol=TOLERANCE))
