"""A long array in chunks: how one is prepared, computed and finished. The same in one process and in many.

Each chunk depends on the seed and its own number alone, so any process can prepare any of them.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gpushare_workload.backend import Backend
from gpushare_workload.report import WrongError

Buffers = NDArray[np.float32]
"""(3, elements of a whole chunk): left, right, result."""
LEFT, RIGHT, RESULT = range(3)
TOLERANCE = 1e-3
"""Of normalised values, around 0: float against double."""


class Filter(StrEnum):
    ADD = "add"
    NORMALISE = "normalise"


@dataclass(frozen=True, slots=True)
class Plan:
    filter: Filter
    elements: int
    chunk: int
    """Elements in each chunk; the last one may have fewer."""
    seed: int

    @property
    def chunks(self) -> int:
        return -(-self.elements // self.chunk)

    def size(self, index: int) -> int:
        return min(self.chunk, self.elements - index * self.chunk)


def prepare(plan: Plan, index: int, buffers: Buffers) -> None:
    """Fills the inputs: what reading and decoding would do, on the CPU."""
    numbers, size = np.random.default_rng((plan.seed, index)), plan.size(index)
    if plan.filter is Filter.ADD:
        for row in (LEFT, RIGHT):
            numbers.random(dtype=np.float32, out=buffers[row, :size])
    else:
        numbers.standard_normal(dtype=np.float32, out=buffers[LEFT, :size])
        buffers[LEFT, :size] *= np.float32(3.0)
        buffers[LEFT, :size] += np.float32(10.0)


def compute(plan: Plan, index: int, buffers: Buffers, backend: Backend) -> None:
    size = plan.size(index)
    if plan.filter is Filter.ADD:
        buffers[RESULT, :size] = backend.add(buffers[LEFT, :size], buffers[RIGHT, :size])
    else:
        buffers[RESULT, :size] = backend.normalise(buffers[LEFT, :size])


def finish(plan: Plan, index: int, buffers: Buffers) -> float:
    """Compares the result with NumPy's; returns its sum of squares. Raises WrongError."""
    size = plan.size(index)
    left, right, result = (buffers[row, :size] for row in (LEFT, RIGHT, RESULT))
    if plan.filter is Filter.ADD:
        right_result = bool(np.array_equal(result, left + right))
    else:
        values = left.astype(np.float64)
        deviation = values.std()
        expected = (values - values.mean()) / deviation if deviation else np.zeros(size)
        right_result = bool(np.allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE))
    if not right_result:
        raise WrongError(f"chunk {index} of {plan.chunks}: {plan.filter} differs from NumPy's")
    return float(np.square(result, dtype=np.float64).sum())
