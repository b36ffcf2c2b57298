"""What the chart says about metrics: its alerts, its PodMonitor as a scrape configuration, and its dashboard."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from localcluster.stack import CHART, NAMESPACE, RELEASE

DASHBOARD = CHART / "files" / "dashboards" / "gpushare.json"
_ENABLED = ("metrics.prometheusRule.enabled", "metrics.podMonitor.enabled")
_RUNBOOKS = "metrics.prometheusRule.runbooks=https://wiki.example/runbooks"
_META = "__meta_kubernetes_pod_"

Object = dict[str, Any]


def manifest(helm: Path, template: str) -> Object:
    """The only object in that file of the chart's `templates/metrics`, with alerts and PodMonitor enabled."""
    switches = [f"--set={name}=true" for name in _ENABLED] + [f"--set={_RUNBOOKS}"]
    argv: list[str | Path] = [helm, "template", RELEASE, CHART, f"--namespace={NAMESPACE}", *switches]
    shown = f"--show-only=templates/metrics/{template}"
    text = subprocess.run([*argv, shown], check=True, capture_output=True, text=True, timeout=120).stdout
    (single,) = [document for document in yaml.safe_load_all(text) if document]
    return dict(single)


def dashboard() -> Object:
    return dict(json.loads(DASHBOARD.read_text()))


def scrape_config(monitor: Object, kubeconfig: Path) -> Object:
    """What the Prometheus Operator makes of the PodMonitor, for a Prometheus outside of the cluster.

    Refuses (ValueError) a field that it does not translate: such a field would be missing here and nobody would know.
    """
    spec = dict(monitor["spec"])
    selector, (endpoint,) = dict(spec.pop("selector")), spec.pop("podMetricsEndpoints")
    labels, expressions = selector.pop("matchLabels", {}), selector.pop("matchExpressions", [])
    endpoint = dict(endpoint)
    port, interval, honor = endpoint.pop("port"), endpoint.pop("interval"), endpoint.pop("honorLabels", False)
    own = [_relabeling(rule) for rule in endpoint.pop("relabelings", [])]
    if unknown := spec.keys() | selector.keys() | endpoint.keys():
        raise ValueError(
            f"the PodMonitor has {sorted(unknown)}, which measurements/dashboard does not translate: add it there"
        )
    name = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    return {
        "job_name": f"podMonitor/{name}/0",
        "honor_labels": honor,
        "scrape_interval": interval,
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "kubeconfig_file": str(kubeconfig),
                "namespaces": {"names": [monitor["metadata"]["namespace"]]},
            }
        ],
        "relabel_configs": [
            {"source_labels": [f"{_META}phase"], "regex": "(Failed|Succeeded)", "action": "drop"},
            *(_keep(f"{_META}label_{_safe(key)}", [value]) for key, value in labels.items()),
            *(_keep(f"{_META}label_{_safe(expression['key'])}", _values(expression)) for expression in expressions),
            _keep(f"{_META}container_port_name", [port]),
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": [f"{_META}container_name"], "target_label": "container"},
            {"source_labels": [f"{_META}name"], "target_label": "pod"},
            {"target_label": "job", "replacement": name},
            {"target_label": "endpoint", "replacement": port},
            *own,
        ],
    }


def _keep(label: str, values: list[str]) -> Object:
    return {"source_labels": [label], "regex": f"({'|'.join(values)})", "action": "keep"}


def _safe(key: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in key)


def _values(expression: Object) -> list[str]:
    if expression["operator"] != "In":
        raise ValueError(
            f"the PodMonitor selects by {expression['operator']}: measurements/dashboard translates In alone"
        )
    return list(expression["values"])


def _relabeling(rule: Object) -> Object:
    """Relabeling with the Prometheus Operator's names made Prometheus' own: sourceLabels becomes source_labels."""
    return {
        "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key): value
        for key, value in rule.items()
    }
