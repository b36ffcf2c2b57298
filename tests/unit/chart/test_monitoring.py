"""What is scraped, by whom, and the alerts and the dashboard that come with it."""

import json
import re

import pytest
import yaml

from tests.unit.chart.rendered import CHART, NAMESPACE, containers, every_variant, helm, named, needs_helm, of_kind

pytestmark = needs_helm


@every_variant
def test_operator_webhook_and_agent_serve_metrics_on_a_port_of_their_own(variant: str) -> None:
    port = {"least": None, "everything": 9500}.get(variant, 9408)
    for name, container in containers(variant):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        silent = ("gpushare-simulated-driver", "gpushare-uninstall", "gpushare-test", "gpushare-ui")
        served = None if name in silent else port
        assert ports.get("metrics") == served, name
        assert (f"--metrics-port={served}" in container.get("args", ())) is (served is not None), name
        assert len(set(ports.values())) == len(ports), name


def test_only_those_who_are_named_may_scrape() -> None:
    for name in ("gpushare-operator", "gpushare-webhook", "gpushare-agent"):
        rules = named("everything", "NetworkPolicy", name)["spec"]["ingress"]
        (scrape,) = [rule for rule in rules if {"port": 9500, "protocol": "TCP"} in rule["ports"]]
        assert scrape == {
            "ports": [{"port": 9500, "protocol": "TCP"}],
            "from": [{"namespaceSelector": {"matchLabels": {"team": "watchers"}}}],
        }
    closed = helm("template", "g", str(CHART), "--set=metrics.from=null", "--show-only=templates/networkpolicy.yaml")
    assert "9408" not in closed.stdout, "without metrics.from nobody may scrape"


def test_by_default_metrics_are_open_to_namespaces_of_given_names_alone() -> None:
    """A namespace's name is an administrator's to give; labels of pods are their authors'."""
    for name in ("gpushare-operator", "gpushare-webhook", "gpushare-agent"):
        rules = named("default", "NetworkPolicy", name)["spec"]["ingress"]
        (scrape,) = [rule for rule in rules if {"port": 9408, "protocol": "TCP"} in rule["ports"]]
        ((selector,),) = [peer.values() for peer in scrape["from"]]
        (names,) = selector["matchExpressions"]
        assert (names["key"], names["operator"]) == ("kubernetes.io/metadata.name", "In")
        assert {"monitoring", "openshift-monitoring", "kube-system"} <= set(names["values"])


def test_every_replica_is_scraped_and_says_on_which_node_it_is() -> None:
    monitor = named("everything", "PodMonitor", "gpushare")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)
    assert [relabeling["targetLabel"] for relabeling in endpoint["relabelings"]] == ["node"]
    selector = monitor["spec"]["selector"]
    (parts,) = selector["matchExpressions"]
    for item in of_kind("everything", "Deployment", "DaemonSet"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert labels["app.kubernetes.io/component"] in parts["values"]


def test_alerts_keep_templates_and_point_to_runbooks() -> None:
    rules = [
        rule for group in named("everything", "PrometheusRule", "gpushare")["spec"]["groups"] for rule in group["rules"]
    ]
    assert named("everything", "PrometheusRule", "gpushare")["metadata"]["labels"]["release"] == "watch"
    assert len(rules) > 10
    for rule in (rule for rule in rules if "alert" in rule):
        url = rule["annotations"]["runbook_url"]
        assert re.fullmatch(rf"https://wiki\.example/gpushare/[a-z-]+\.md#{rule['alert'].lower()}", url)
    (down,) = [rule for rule in rules if rule.get("alert") == "GpushareDown"]
    assert down["expr"] == f'up{{job="{NAMESPACE}/gpushare"}} == 0'
    assert "{{ $labels.pod }}" in down["annotations"]["description"]


def test_by_default_the_usual_operator_selects_what_is_for_it() -> None:
    """kube-prometheus-stack selects PodMonitors and rules by the label `release`: nothing says what it ignores."""
    on = ("--set=metrics.podMonitor.enabled=true", "--set=metrics.prometheusRule.enabled=true")
    rendered = helm("template", "g", str(CHART), *on).stdout
    monitors = [item for item in yaml.safe_load_all(rendered) if item and item["apiVersion"].startswith("monitoring.")]
    labels = {item["kind"]: item["metadata"]["labels"]["release"] for item in monitors}
    assert labels == dict.fromkeys(("PodMonitor", "PrometheusRule"), "kube-prometheus-stack")


def test_alerts_link_to_the_charts_home_or_to_nothing() -> None:
    """A relative link leads nowhere from a pager, and a host that nobody owns is worse."""
    shown = "--show-only=templates/metrics/prometheusrule.yaml"
    rule = yaml.safe_load(helm("template", "g", str(CHART), "--set=metrics.prometheusRule.enabled=true", shown).stdout)
    for alert in (item for group in rule["spec"]["groups"] for item in group["rules"] if "alert" in item):
        assert alert["annotations"].keys() == {"summary", "description"}


def test_the_dashboard_is_what_grafanas_sidecar_collects() -> None:
    board = named("everything", "ConfigMap", "gpushare-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    shown = json.loads(board["data"]["gpushare.json"])
    assert shown["uid"] == "gpushare"
    steps = {target["interval"] for panel in shown["panels"] for target in panel.get("targets", ())}
    assert steps == {"1m"}, "by which Grafana knows the interval of the scrapes"


@pytest.mark.parametrize("variant", ["default", "simulated", "least"])
def test_nothing_asks_for_the_prometheus_operator_unless_it_is_wanted(variant: str) -> None:
    assert not of_kind(variant, "PodMonitor", "PrometheusRule")
    assert "gpushare-dashboard" not in {item["metadata"]["name"] for item in of_kind(variant, "ConfigMap")}
