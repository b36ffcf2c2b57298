"""A spread against values computed by hand, and as text and fields."""

import pytest

from gpushare.kubectl.rules.trial.spread import Spread


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert Spread.of([4.0, 1.0, 2.0]) == Spread(2.0, 1.0, 4.0)
    assert Spread.of([1.0, 2.0]).median == 1.5
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])
    assert Spread.of_any([]) is None


def test_extremes_that_read_as_the_median_are_left_out() -> None:
    assert Spread(1234.5, 1200.0, 1300.0).text() == "1,234.50 (1,200.00–1,300.00)"
    assert Spread(2.001, 1.999, 2.004).text() == "2.00"
    assert Spread(2.001, 1.999, 2.004).text(".3f") == "2.001 (1.999–2.004)"


def test_as_fields_it_is_rounded_under_three_names() -> None:
    fields = Spread(1.54, 1.06, 1.96).rounded("gain", 1)
    assert fields == {"gain": 1.5, "gain_least": 1.1, "gain_largest": 2.0}
    assert Spread.of_fields({**fields, "other": 1}, "gain") == Spread(1.5, 1.1, 2.0)
