"""docs/metrics.md: its queries are those that Prometheus' engine is tested with, and read what is exported."""

import re
from typing import Any

import pytest
import yaml

from localcluster.paths import REPOSITORY
from tests.unit.docs.exported import exposed
from tests.unit.docs.promql import parse

PAGE = (REPOSITORY / "docs" / "metrics.md").read_text()
QUERIES = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
(CASE,) = yaml.safe_load((REPOSITORY / "tests" / "alerts" / "dcgm.yaml").read_text())["tests"]
EXPRESSIONS: list[dict[str, Any]] = CASE["promql_expr_test"]
EXPORTED = {name: set(metric.labels) for metric in exposed() for name in metric.series}


def test_the_queries_of_the_page_are_tested_each_with_an_answer() -> None:
    assert [tested["expr"] for tested in EXPRESSIONS] == QUERIES
    assert all(tested["exp_samples"] for tested in EXPRESSIONS)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_series_that_one_of_the_exporters_has(query: str) -> None:
    parsed = parse(query)
    for metric, _ in parsed.selectors:
        assert metric in EXPORTED or f"`{metric}`" in PAGE, f"{metric} is of neither"
    ours = [EXPORTED[metric] for metric, _ in parsed.selectors if metric in EXPORTED]
    assert ours
    assert parsed.labels <= set().union(*ours)


def test_the_series_of_ours_on_the_page_are_exported() -> None:
    named = set(re.findall(r"`(gpushare_\w+)`", PAGE)) - {"gpushare_container_"}
    assert named
    assert named <= EXPORTED.keys()
