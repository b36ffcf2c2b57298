"""Prometheus' promtool and the chart's rules, each made once."""

from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import HELM, PROMETHEUS, build_component
from tests.alerts.programs import run

CHART = REPOSITORY / "charts" / "gpushare"


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
