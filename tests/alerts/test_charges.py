"""Charges and idle make the GPU-hours of a week in a real Prometheus, by the chart's rule and the page's queries."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.agent.observe.charges import IDLE
from localcluster.paths import REPOSITORY
from tests.alerts.charged_week import REBOOT, WEEK, held, scraped, true_hours
from tests.alerts.programs import run
from tests.prometheus.server import Prometheus, running

PAGE = (REPOSITORY / "docs" / "chargeback.md").read_text()
HOURS, COST = re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL)
GPU_HOURS = (4 * WEEK - 2 * (REBOOT[1] - REBOOT[0])) / 3600
PRICES = {"n1": 3.0, "n2": 2.0}
BEGIN = 1_790_000_040
"""A minute of some week."""
WITHIN, WITHIN_A_JOB = 0.01, 0.4
"""Begin and end of a job of 20 s are seen late, and it may stand in one more or less of the five samples that make its
time."""


@pytest.fixture(scope="module")
def prometheus(promtool: Path, rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that holds the week, with what the chart's rules recorded of it."""
    folder = tmp_path_factory.mktemp("charges")
    week, data = folder / "week.om", folder / "data"
    with week.open("w") as file:
        file.writelines(f"{line}\n" for line in scraped(held(), BEGIN, PRICES))
    load = ("tsdb", "create-blocks-from")
    run(promtool, *load, "openmetrics", "--max-block-duration=24h", "--quiet", week, data)
    with running(promtool.parent / "prometheus", folder) as server:
        span = (f"--start={BEGIN}", f"--end={BEGIN + WEEK}")
        run(promtool, *load, "rules", *span, f"--url={server.address}", f"--output-dir={data}", "--quiet", rules)
    with running(promtool.parent / "prometheus", folder) as server:
        yield server


def answered(prometheus: Prometheus, query: str) -> dict[str, float]:
    """The query's answer at the end of the week, by namespace."""
    answer = prometheus.ask("query", query=query, time=str(BEGIN + WEEK))
    return {line["metric"]["namespace"]: float(line["value"][1]) for line in answer["result"]}


def test_charges_and_idle_add_up_to_the_gpu_hours_of_a_week(prometheus: Prometheus) -> None:
    true, charged = true_hours(held()), answered(prometheus, HOURS)
    assert sum(true.values()) == pytest.approx(GPU_HOURS)
    assert sum(charged.values()) == pytest.approx(GPU_HOURS, rel=WITHIN)
    assert charged.keys() == true.keys() > {IDLE, "ci", "once", "borrower", "lender", "crowd-1"}
    for namespace, hours in true.items():
        within = WITHIN_A_JOB if namespace == "once" else WITHIN
        assert charged[namespace] == pytest.approx(hours, rel=within), namespace


def test_hours_times_opencosts_prices_are_what_a_namespace_owes(prometheus: Prometheus) -> None:
    true, owed = true_hours(held()), answered(prometheus, COST)
    assert owed["lender"] == pytest.approx(true["lender"] * PRICES["n1"], rel=WITHIN)
    assert owed["team"] == pytest.approx(true["team"] * PRICES["n2"], rel=WITHIN)
