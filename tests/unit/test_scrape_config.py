"""The PodMonitor becomes what the Prometheus Operator would make of it, and nothing of it is lost silently."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus.chart import scrape_config

MONITOR: dict[str, Any] = {
    "metadata": {"name": "gpushare", "namespace": "gpushare-system"},
    "spec": {
        "selector": {
            "matchLabels": {"app.kubernetes.io/name": "gpushare"},
            "matchExpressions": [{"key": "part", "operator": "In", "values": ["operator", "agent"]}],
        },
        "podMetricsEndpoints": [
            {
                "port": "metrics",
                "interval": "30s",
                "honorLabels": True,
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
            }
        ],
    },
}


def test_labels_port_and_relabelings_are_prometheus_own() -> None:
    config = scrape_config(MONITOR, Path("/k"))
    assert (config["scrape_interval"], config["honor_labels"]) == ("30s", True)
    assert config["kubernetes_sd_configs"][0]["namespaces"] == {"names": ["gpushare-system"]}
    rules = config["relabel_configs"]
    kept = {rule["source_labels"][0]: rule["regex"] for rule in rules if rule.get("action") == "keep"}
    assert kept == {
        "__meta_kubernetes_pod_label_app_kubernetes_io_name": "(gpushare)",
        "__meta_kubernetes_pod_label_part": "(operator|agent)",
        "__meta_kubernetes_pod_container_port_name": "(metrics)",
    }
    assert {"target_label": "job", "replacement": "gpushare-system/gpushare"} in rules
    assert rules[-1] == {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"}


@pytest.mark.parametrize(
    ("where", "name"), [(("spec",), "sampleLimit"), (("spec", "podMetricsEndpoints", 0), "authorization")]
)
def test_a_field_that_nobody_translates_is_refused(where: tuple[Any, ...], name: str) -> None:
    changed = copy.deepcopy(MONITOR)
    place: Any = changed
    for step in where:
        place = place[step]
    place[name] = 1
    with pytest.raises(ValueError, match=name):
        scrape_config(changed, Path("/k"))


def test_another_operator_of_a_selector_is_refused() -> None:
    changed = copy.deepcopy(MONITOR)
    changed["spec"]["selector"]["matchExpressions"][0]["operator"] = "NotIn"
    with pytest.raises(ValueError, match="NotIn"):
        scrape_config(changed, Path("/k"))
