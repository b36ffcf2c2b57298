"""The chart's alerts in Prometheus' own rule engine: `make alerts-test`, which builds Prometheus and Helm once.

What makes an alert fire, and what does not, is in the YAML files beside this one, in promtool's own form
(prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules).
"""

import shutil
from pathlib import Path

import pytest

from tests.alerts.programs import run

CASES = sorted(Path(__file__).parent.glob("*.yaml"))


def test_prometheus_takes_the_rules_without_a_complaint(promtool: Path, rules: Path) -> None:
    """Prometheus' linter has no complaint either: of a rule that stands twice, or two that differ in their severity
    alone."""
    assert "SUCCESS" in run(promtool, "check", "rules", "--lint=all", "--lint-fatal", rules)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_alerts_fire_for_what_they_mean_and_for_nothing_else(promtool: Path, rules: Path, case: Path) -> None:
    shutil.copy(case, rules.parent)
    run(promtool, "test", "rules", rules.parent / case.name)
