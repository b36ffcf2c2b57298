"""Fairness against values computed by hand, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_workload.results.summary import jain

RATES = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("rates", "index"),
    [
        ([5.0], 1.0),
        ([3.0, 3.0, 3.0], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 3.0], 0.8),  # (1 + 3)² / (2 × (1 + 9))
        ([1.0, 2.0, 3.0], 36 / 42),
        ([0.0, 0.0], 1.0),
    ],
)
def test_jains_index_is_the_one_computed_by_hand(rates: list[float], index: float) -> None:
    assert jain(rates) == pytest.approx(index)


@given(RATES)
def test_fairness_is_between_one_nth_and_one(rates: list[float]) -> None:
    assert 1 / len(rates) <= jain(rates) <= 1


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20), st.floats(0.001, 1000))
def test_fairness_does_not_depend_on_the_unit(rates: list[float], factor: float) -> None:
    assert jain([rate * factor for rate in rates]) == pytest.approx(jain(rates))


@pytest.mark.parametrize(("rates", "words"), [([], "there is none"), ([1.0, -2.0], "a rate of -2")])
def test_rates_that_are_none_are_refused(rates: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        jain(rates)
