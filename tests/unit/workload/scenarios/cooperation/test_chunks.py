"""Chunks of a long array: right at every size, and a changed value is found."""

import numpy as np
import pytest

from gpushare_workload.backend.filters import ChunkFilter
from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.events import WrongError
from gpushare_workload.scenarios.cooperation import chunks
from gpushare_workload.scenarios.cooperation.chunks import MISSING, ChunkPlan


@pytest.mark.parametrize("name", list(ChunkFilter))
@pytest.mark.parametrize(("elements", "chunk", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (1, 1, [1]), (2, 9, [2])])
def test_every_chunk_of_every_size_passes_its_check(
    name: ChunkFilter, elements: int, chunk: int, sizes: list[int]
) -> None:
    plan, buffers = ChunkPlan(name, elements, chunk, seed=1), np.zeros((3, chunk), np.float32)
    assert [plan.size(index) for index in range(plan.chunks)] == sizes
    for index in range(plan.chunks):
        chunks.prepare(plan, index, buffers)
        chunks.compute(plan, index, buffers, NumpyBackend())
        assert chunks.finish(plan, index, buffers).squares >= 0


@pytest.mark.parametrize("name", list(ChunkFilter))
def test_a_changed_value_in_a_chunk_is_found(name: ChunkFilter) -> None:
    plan = ChunkPlan(name, elements=10, chunk=10, seed=1)
    buffers = np.zeros((3, 10), np.float32)
    chunks.prepare(plan, 0, buffers)
    chunks.compute(plan, 0, buffers, NumpyBackend())
    chunks.finish(plan, 0, buffers)
    buffers[chunks.RESULT, 9] += 0.01
    with pytest.raises(WrongError, match=f"chunk 0 of 1: {name} differs"):
        chunks.finish(plan, 0, buffers)


def test_raw_readings_are_decoded_filled_in_normalised_and_cut() -> None:
    raw = np.array([10, MISSING, 20, 30, 20, 20] * 50 + [2000], np.int16)
    into = np.empty(len(raw), np.float32)
    chunks.clean(raw, into)
    there = raw[raw != MISSING].astype(np.float64)
    filled = np.where(raw == MISSING, there.mean(), raw)
    expected = (filled - there.mean()) / np.sqrt(np.mean((filled - there.mean()) ** 2))
    assert np.allclose(into[:-1], expected[:-1], atol=1e-4)
    # The outlier lies 17 deviations out.
    assert expected[-1] > 17
    assert into[-1] == chunks.DESPIKED


@pytest.mark.parametrize("value", [MISSING, 5])
def test_readings_without_any_spread_become_zeros(value: int) -> None:
    into = np.full(4, np.nan, np.float32)
    chunks.clean(np.full(4, value, np.int16), into)
    assert not into.any()


def test_some_readings_are_missing() -> None:
    raw = chunks.readings(np.random.default_rng(1), 10_000)
    assert 1 <= np.count_nonzero(raw == MISSING) <= 10
    assert np.abs(raw[raw != MISSING]).max() <= chunks.SPAN


def test_a_signal_is_compressed_as_for_storage_and_other_results_are_not() -> None:
    stored = {}
    for name in ChunkFilter:
        plan, buffers = ChunkPlan(name, 5000, 5000, seed=1), np.zeros((3, 5000), np.float32)
        chunks.prepare(plan, 0, buffers)
        chunks.compute(plan, 0, buffers, NumpyBackend())
        stored[name] = chunks.finish(plan, 0, buffers).stored
    assert (stored[ChunkFilter.ADD], stored[ChunkFilter.NORMALISE]) == (0, 0)
    assert 1000 < stored[ChunkFilter.SIGNAL] < 20_000
