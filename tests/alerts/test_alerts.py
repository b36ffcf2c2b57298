"""The chart's alerts in Prometheus' own rule engine: `make alerts-test`, which builds Prometheus and Helm once.

What makes an alert fire, and what does not, is in the YAML files beside this one, in promtool's own form
(prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules).
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import HELM, PROMETHEUS, build_component

CHART = REPOSITORY / "charts" / "gpushare"
CASES = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return build_component(PROMETHEUS, cache_root()) / "promtool"


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The groups of the PrometheusRule that the chart renders, as a file for Prometheus."""
    helm = build_component(HELM, cache_root()) / "helm"
    argv = [
        helm,
        "template",
        "gpushare",
        CHART,
        "--namespace=gpushare-system",
        "--set=metrics.prometheusRule.enabled=true",
        "--set=metrics.prometheusRule.runbooks=https://wiki.example/runbooks",
    ]
    rendered = run(*argv, "--show-only=templates/metrics/prometheusrule.yaml")
    (rule,) = [document for document in yaml.safe_load_all(rendered) if document]
    file = tmp_path_factory.mktemp("alerts") / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    return file


def run(*argv: str | Path) -> str:
    """What the command says; a failure is told with all of it."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules_without_a_complaint(promtool: Path, rules: Path) -> None:
    """Prometheus' linter has no complaint either: of a rule that stands twice, or two that differ in their severity
    alone."""
    assert "SUCCESS" in run(promtool, "check", "rules", "--lint=all", "--lint-fatal", rules)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_alerts_fire_for_what_they_mean_and_for_nothing_else(promtool: Path, rules: Path, case: Path) -> None:
    shutil.copy(case, rules.parent)
    run(promtool, "test", "rules", rules.parent / case.name)
