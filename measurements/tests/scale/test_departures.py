"""The figures of departures: the nearest rank, and every way of every round."""

import pytest

from measurements.scale.agent.departures import percentile, summary


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 2.0), (75, 3.0), (90, 4.0), (99, 4.0), (1, 1.0)], ids=lambda value: f"{value}"
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected


def test_a_summary_counts_all_deletions_and_names_the_slowest() -> None:
    figures = summary([3.0, 1.0, 2.0])
    assert (figures["deletions"], figures["medianMilliseconds"], figures["largestMilliseconds"]) == (3, 2.0, 3.0)
