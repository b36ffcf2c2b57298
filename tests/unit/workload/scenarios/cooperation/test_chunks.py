"""Chunks of a long array: right at every size, and a changed value is found."""

import numpy as np
import pytest

from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.events import WrongError
from gpushare_workload.scenarios.cooperation import chunks
from gpushare_workload.scenarios.cooperation.chunks import ChunkPlan, Filter


@pytest.mark.parametrize("name", list(Filter))
@pytest.mark.parametrize(("elements", "chunk", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (1, 1, [1]), (2, 9, [2])])
def test_every_chunk_of_every_size_passes_its_check(name: Filter, elements: int, chunk: int, sizes: list[int]) -> None:
    plan, buffers = ChunkPlan(name, elements, chunk, seed=1), np.zeros((3, chunk), np.float32)
    assert [plan.size(index) for index in range(plan.chunks)] == sizes
    for index in range(plan.chunks):
        chunks.prepare(plan, index, buffers)
        chunks.compute(plan, index, buffers, NumpyBackend())
        assert chunks.finish(plan, index, buffers) >= 0


@pytest.mark.parametrize("name", list(Filter))
def test_a_changed_value_in_a_chunk_is_found(name: Filter) -> None:
    plan = ChunkPlan(name, elements=10, chunk=10, seed=1)
    buffers = np.zeros((3, 10), np.float32)
    chunks.prepare(plan, 0, buffers)
    chunks.compute(plan, 0, buffers, NumpyBackend())
    chunks.finish(plan, 0, buffers)
    buffers[chunks.RESULT, 9] += 0.01
    with pytest.raises(WrongError, match=f"chunk 0 of 1: {name} differs"):
        chunks.finish(plan, 0, buffers)
