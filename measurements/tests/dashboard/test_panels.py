"""Queries are run as Grafana runs them, and a panel that shows nothing, or two lines of one name, is found."""

import math
from typing import Any

import pytest

from measurements.dashboard.panels import Window, expanded, legend, seconds, show, table
from tests.prometheus.server import Series

HOUR = Window(0.0, 3600.0)


def dashboard(*targets: tuple[str, str]) -> dict[str, Any]:
    queries = [{"expr": query, "legendFormat": template} for query, template in targets]
    panel = {"type": "timeseries", "title": "Slots", "fieldConfig": {"defaults": {"unit": "short"}}, "targets": queries}
    return {"panels": [{"type": "row", "title": "Shares"}, panel]}


def answers(**series_by_query: list[Series]) -> Any:
    return lambda query, start, end, step: series_by_query.get(query, [])


def series(*values: float, **labels: str) -> Series:
    return Series(labels, tuple((15.0 * at, value) for at, value in enumerate(values)))


@pytest.mark.parametrize(
    ("window", "step", "rate"),
    [
        (Window(0, 3600), 15, 60),
        (Window(0, 6 * 3600), 36, 60),
        (Window(0, 7 * 86400), 1008, 1023),
        (Window(0, 3600, scrape=30), 30, 120),
    ],
)
def test_the_rate_interval_spans_four_scrapes_or_the_step_and_one_more(
    window: Window, step: float, rate: float
) -> None:
    assert (window.step, window.rate_interval) == (step, rate)


def test_all_of_a_variable_is_all_its_values() -> None:
    query = 'increase(a{share=~"$share"}[$__rate_interval])'
    assert expanded(query, HOUR, {"share": ["red", "blue"]}) == 'increase(a{share=~"(red|blue)"}[60s])'


def test_a_variable_that_the_dashboard_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="shares"):
        expanded('a{share=~"$shares"}', HOUR, {"share": ["red"]})


def test_a_legend_takes_labels_and_leaves_out_those_that_the_series_lacks() -> None:
    assert legend("{{share}}: {{ reason }}{{node}}", {"share": "red", "reason": "Ready"}) == "red: Ready"
    assert legend("", {"b": "2", "a": "1"}) == "a=1, b=2"


def test_a_query_without_a_number_is_empty_though_prometheus_answers() -> None:
    (shown,) = show(
        dashboard(("a", "{{x}}"), ("b", ""), ("c", "")),
        HOUR,
        {},
        answers(a=[series(1, 3, x="1")], b=[series(math.nan, math.inf)]),
    )
    assert shown.empty == ("b", "c")
    assert shown.bounds == (1, 3)
    assert "EMPTY: b" in table([shown])[0]


def test_two_lines_of_one_legend_collide_also_across_queries() -> None:
    lines = {"a": [series(1, pod="old"), series(2, pod="new")], "b": [series(1, pod="old")]}
    (apart,) = show(dashboard(("a", "{{pod}}")), HOUR, {}, answers(**lines))
    assert apart.collisions == ()
    (same,) = show(dashboard(("a", "held"), ("b", "free")), HOUR, {}, answers(**lines))
    assert same.collisions == ("held",)
    (across,) = show(dashboard(("a", "{{pod}}"), ("b", "{{pod}}")), HOUR, {}, answers(**lines))
    assert across.collisions == ("old",)


def test_a_query_with_a_minimum_step_of_its_own_is_asked_by_that() -> None:
    asked: list[tuple[str, float, float, float]] = []

    def ask(*question: Any) -> list[Series]:
        asked.append(question)
        return []

    board = dashboard(("rate(a[$__rate_interval])", ""))
    board["panels"][1]["targets"][0]["interval"] = "1m"
    show(board, HOUR, {}, ask)
    assert asked == [("rate(a[240s])", 0.0, 3600.0, 60.0)]


def test_a_duration_of_another_form_is_an_error() -> None:
    assert [seconds(text) for text in ("30s", "2m", "1h")] == [30, 120, 3600]
    with pytest.raises(ValueError, match="1d2h"):
        seconds("1d2h")
