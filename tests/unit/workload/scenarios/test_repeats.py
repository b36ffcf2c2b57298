"""Figures of several repeats as those of one."""

from typing import Any

import pytest

from gpushare_workload.scenarios.repeats import summarised


@pytest.mark.parametrize(
    ("repeats", "summary"),
    [
        ([{"mode": "a", "seconds": 2.0}], {"repeats": 1, "mode": "a", "seconds": 2.0}),
        (
            [{"seconds": 3.0, "tasks": 1}, {"seconds": 1.0, "tasks": 1}, {"seconds": 1.5, "tasks": 1}],
            {"repeats": 3, "seconds": 1.5, "seconds_least": 1.0, "seconds_largest": 3.0, "tasks": 1},
        ),
        ([{"busy": None}, {"busy": 4.0}], {"repeats": 2, "busy": 4.0, "busy_least": 4.0, "busy_largest": 4.0}),
        ([{"busy": 4.0}, {"busy": None}], {"repeats": 2, "busy": 4.0, "busy_least": 4.0, "busy_largest": 4.0}),
        ([{"busy": None}, {"busy": None}], {"repeats": 2, "busy": None}),
    ],
    ids=["one", "three", "absent at first", "absent at last", "absent"],
)
def test_a_float_becomes_its_median_with_its_spread(repeats: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    assert summarised(repeats) == summary


def test_no_repeats_are_no_figures() -> None:
    with pytest.raises(ValueError, match="no repeats"):
        summarised([])
