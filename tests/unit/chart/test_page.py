"""The page in the cluster: off unless wanted, reading alone, reached through its proxy."""

from tests.unit.chart.rendered import CHART, helm, named, needs_helm, rendered, workloads

pytestmark = needs_helm


def test_the_page_is_off_unless_wanted_and_then_reads_alone() -> None:
    assert "gpushare-ui" not in {item["metadata"]["name"] for item in rendered("default")}
    for rule in named("page", "ClusterRole", "gpushare-ui")["rules"]:
        assert set(rule["verbs"]) <= {"get", "list", "watch"}
        assert not any("/" in resource or resource == "secrets" for resource in rule["resources"]), "nor proxies"
    (container,) = dict(workloads("page"))["gpushare-ui"]["containers"]
    assert [argument for argument in container["args"] if argument.startswith("--host=")] == [
        "--host=gpus.example.com",
        "--host=gpus",
    ]


def test_the_page_is_reached_through_the_named_proxy_alone() -> None:
    opened = named("page", "NetworkPolicy", "gpushare-ui")["spec"]["ingress"]
    assert opened == [
        {"ports": [{"port": 8083, "protocol": "TCP"}]},
        {
            "ports": [{"port": 8090, "protocol": "TCP"}],
            "from": [{"namespaceSelector": {"matchLabels": {"team": "ingress"}}}],
        },
    ]
    own = {"matchLabels": {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "ui"}}
    from_page = {"ports": [{"port": 9408, "protocol": "TCP"}], "from": [{"podSelector": own}]}
    reached = {
        name
        for name in ("operator", "webhook", "agent")
        if from_page in named("page", "NetworkPolicy", f"gpushare-{name}")["spec"]["ingress"]
    }
    assert reached == {"agent"}


def test_a_page_without_a_name_or_without_figures_is_refused() -> None:
    for values, words in (
        (("ui.enabled=true",), "ui.hosts is empty"),
        (("ui.enabled=true", "ui.hosts={a}", "metrics.enabled=false"), "ui.enabled needs metrics.enabled"),
        (("ui.enabled=true", "ui.hosts={https://a}"), "/ui/hosts/0"),
    ):
        refused = helm("template", "g", str(CHART), *(f"--set={value}" for value in values), check=False)
        assert refused.returncode != 0
        assert words in refused.stderr
