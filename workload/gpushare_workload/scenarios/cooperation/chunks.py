"""A long array in chunks, and the three steps for each chunk: prepare, compute, finish.

Guarantees: a chunk depends only on the seed and its number, so any process can prepare any chunk, and one process gives
the same results as many.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend import Backend
from gpushare_workload.events import WrongError

Buffers = NDArray[np.float32]
"""(3, elements of a whole chunk): left, right, result."""
LEFT, RIGHT, RESULT = range(3)
TOLERANCE = 1e-3
"""Of normalised values, which lie around 0: float compared with double."""


class Filter(StrEnum):
    """What is computed for each chunk."""

    ADD = "add"
    NORMALISE = "normalise"


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How an array of `elements` floats is cut into chunks."""

    filter: Filter
    elements: int
    chunk: int
    """Elements in each chunk; the last chunk may have fewer."""
    seed: int

    @property
    def chunks(self) -> int:
        return -(-self.elements // self.chunk)

    def size(self, index: int) -> int:
        """Elements in that chunk."""
        return min(self.chunk, self.elements - index * self.chunk)


def prepare(plan: ChunkPlan, index: int, buffers: Buffers) -> None:
    """Fills the inputs on the CPU, in place of reading and decoding."""
    numbers, size = np.random.default_rng((plan.seed, index)), plan.size(index)
    if plan.filter is Filter.ADD:
        for row in (LEFT, RIGHT):
            numbers.random(dtype=np.float32, out=buffers[row, :size])
    else:
        numbers.standard_normal(dtype=np.float32, out=buffers[LEFT, :size])
        buffers[LEFT, :size] *= np.float32(3.0)
        buffers[LEFT, :size] += np.float32(10.0)


def compute(plan: ChunkPlan, index: int, buffers: Buffers, backend: Backend) -> None:
    """Computes the result on the GPU."""
    size = plan.size(index)
    if plan.filter is Filter.ADD:
        buffers[RESULT, :size] = backend.add(buffers[LEFT, :size], buffers[RIGHT, :size])
    else:
        buffers[RESULT, :size] = backend.normalise(buffers[LEFT, :size])


def finish(plan: ChunkPlan, index: int, buffers: Buffers) -> float:
    """Compares the result with NumPy's and returns its sum of squares. Raises WrongError if they differ."""
    size = plan.size(index)
    left, right, result = (buffers[row, :size] for row in (LEFT, RIGHT, RESULT))
    if plan.filter is Filter.ADD:
        matches = bool(np.array_equal(result, left + right))
    else:
        values = left.astype(np.float64)
        deviation = values.std()
        expected = (values - values.mean()) / deviation if deviation else np.zeros(size)
        matches = bool(np.allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE))
    if not matches:
        raise WrongError(f"chunk {index} of {plan.chunks}: {plan.filter} differs from NumPy's")
    return float(np.square(result, dtype=np.float64).sum())
