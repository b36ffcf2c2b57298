"""Latencies in bounded memory: percentiles are numpy's within the stated resolution, whatever is recorded."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.results.histogram import (
    COUNTERS,
    LARGEST,
    RELATIVE_ERROR,
    Histogram,
    bucket_middle,
    bucket_of,
)

NANOSECONDS = st.integers(0, 10**12)
SAMPLES = st.lists(NANOSECONDS, min_size=1, max_size=200)
PERCENT = st.floats(0, 100)


def test_percentiles_of_a_small_table_are_those_counted_by_hand() -> None:
    histogram = Histogram.of([10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
    assert [histogram.percentile(percent) for percent in (0, 10, 50, 90, 91, 99, 100)] == [
        10, 10, 50, 90, 100, 100, 100
    ]  # fmt: skip
    assert histogram.mean() == 55


@given(SAMPLES, PERCENT)
def test_a_percentile_is_numpys_within_the_resolution(samples: list[int], percent: float) -> None:
    expected = float(np.percentile(samples, percent, method="inverted_cdf"))
    got = Histogram.of(samples).percentile(percent)
    neighbours = sorted(samples)
    rank = neighbours.index(expected)
    near = {expected, float(neighbours[max(0, rank - 1)])}  # at the step itself, rounding may take either side
    assert any(abs(got - value) <= RELATIVE_ERROR * value + 1e-6 for value in near)


@given(SAMPLES, st.lists(PERCENT, min_size=2, max_size=10))
def test_percentiles_never_fall_as_the_percentage_grows(samples: list[int], percents: list[float]) -> None:
    histogram = Histogram.of(samples)
    values = [histogram.percentile(percent) for percent in sorted(percents)]
    assert values == sorted(values)
    assert min(samples) <= values[0]
    assert values[-1] <= max(samples)


@given(st.lists(st.lists(NANOSECONDS, max_size=50), max_size=5))
def test_merging_histograms_is_the_histogram_of_all_samples(parts: list[list[int]]) -> None:
    merged = Histogram.merged(Histogram.of(part) for part in parts)
    whole = Histogram.of(value for part in parts for value in part)
    assert merged.as_json() == whole.as_json()


@given(SAMPLES)
def test_a_histogram_survives_json(samples: list[int]) -> None:
    histogram = Histogram.of(samples)
    again = Histogram.from_json(json.loads(json.dumps(histogram.as_json())))
    assert again.as_json() == histogram.as_json()
    assert again.percentile(99) == histogram.percentile(99)


@given(SAMPLES)
def test_a_distribution_grows_to_one(samples: list[int]) -> None:
    steps = Histogram.of(samples).distribution()
    assert [step[0] for step in steps] == sorted({step[0] for step in steps})
    assert steps[-1][1] == 1.0


@given(st.integers(0, LARGEST))
def test_every_duration_has_a_counter_within_the_resolution(value: int) -> None:
    bucket = bucket_of(value)
    assert 0 <= bucket < COUNTERS
    assert abs(bucket_middle(bucket) - value) <= RELATIVE_ERROR * value


def test_a_duration_beyond_the_range_counts_as_the_longest() -> None:
    assert Histogram.of([LARGEST * 8]).largest == LARGEST


def test_what_makes_no_sense_is_refused() -> None:
    empty = Histogram()
    for call in (empty.mean, lambda: empty.percentile(50), lambda: empty.record(-1)):
        with pytest.raises(ValueError, match=r"no samples|a duration of -1 ns"):
            call()
    with pytest.raises(ValueError, match="a percentile is within 0 and 100, not 101"):
        Histogram.of([1]).percentile(101)
