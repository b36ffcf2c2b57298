"""Rules and dashboard: they ask for what is exported, and each alert has the runbook that it points to."""

import json
import re
from typing import Any

import pytest
import yaml

from localcluster.paths import REPOSITORY
from tests.unit.docs.exported import exposed
from tests.unit.docs.links import anchors
from tests.unit.docs.promql import PromqlError, Query, parse

CHART = REPOSITORY / "charts" / "gpushare"
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
GROUPS = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = [rule for rule in RULES if "record" in rule]
DASHBOARD = json.loads((CHART / "files" / "dashboards" / "gpushare.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

TARGET = {"job", "instance", "node", "namespace", "pod", "container"}
"""Labels that Prometheus puts on every series of a scraped pod (charts/gpushare/templates/metrics/podmonitor.yaml)."""
SERIES = {"up": TARGET} | {
    name: {*metric.labels, *TARGET} | ({"le"} if name.endswith("_bucket") else set())
    for metric in exposed()
    for name in metric.series
}
ENTRIES: list[tuple[str, str]] = [
    entry
    for page in sorted(RUNBOOKS.glob("*.md"))
    for entry in re.findall(r"^## (Gpushare\w+)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
]
"""(alert, what its runbook says), from every page of the runbooks."""
by_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))


def check(query: Query) -> None:
    assert query.selectors
    for metric, labels in query.selectors:
        assert metric in SERIES, f"{metric} is not exported"
        assert set(labels) <= SERIES[metric], f"{metric} has no label {set(labels) - SERIES[metric]}"
    assert query.labels <= {label for metric, _ in query.selectors for label in SERIES[metric]}


@by_alert
def test_an_alert_asks_for_exported_series_and_labels(alert: dict[str, Any]) -> None:
    check(parse(alert["expr"]))


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: str(rule["record"]))
def test_a_recording_rule_reads_exported_series_and_has_a_page(rule: dict[str, Any]) -> None:
    query = parse(rule["expr"])
    check(query)
    assert not query.bare
    assert not query.summed
    assert f"`{rule['record']}`" in (REPOSITORY / "docs" / "chargeback.md").read_text()


@by_alert
def test_an_alert_survives_the_pod_that_exports_its_series(alert: dict[str, Any]) -> None:
    """Else its `for` begins anew with each restart of operator or agent. Three are about the pods themselves."""
    query = parse(alert["expr"])
    if alert["alert"] not in ("GpushareDown", "GpushareNoLeader", "GpushareCertificateExpiring"):
        assert not query.bare
    assert not query.summed


@by_alert
def test_an_alert_has_severity_summary_figures_and_a_runbook(alert: dict[str, Any]) -> None:
    annotations = alert["annotations"]
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    page, _, heading = annotations["runbook_url"].removeprefix("RUNBOOKS/").partition("#")
    assert heading == alert["alert"].lower()
    assert heading in anchors((RUNBOOKS / page).read_text())
    used = set(re.findall(r"\{\{ \$labels\.(\w+) }}", annotations["description"]))
    query = parse(alert["expr"])
    known = query.labels | {label for metric, _ in query.selectors for label in SERIES[metric]}
    assert used <= known
    without_figures = re.sub(
        r"\{\{ \$(labels\.\w+|value)( \| humanize(1024|Duration|Percentage)?)? }}", "", str(annotations)
    )
    assert "{" not in without_figures[1:-1], "a template that Prometheus would not understand"


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    """Run by Prometheus itself: tests/alerts."""
    cases = [
        expected
        for file in (REPOSITORY / "tests" / "alerts").glob("*.yaml")
        for test in yaml.safe_load(file.read_text())["tests"]
        for expected in test.get("alert_rule_test", [])
    ]
    fires, quiet = (
        {case["alertname"] for case in cases if bool(case["exp_alerts"]) is wanted} for wanted in (True, False)
    )
    assert sorted(fires) == sorted(quiet) == sorted(alert["alert"] for alert in ALERTS)


def test_every_alert_has_one_runbook_and_every_runbook_an_alert() -> None:
    assert sorted(name for name, _ in ENTRIES) == sorted(alert["alert"] for alert in ALERTS)


@pytest.mark.parametrize(("name", "text"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_a_runbook_tells_impact_diagnosis_and_mitigation(name: str, text: str) -> None:
    meaning = text.partition("**Impact")[0].strip()
    assert meaning, f"{name} does not say what it means"
    assert re.findall(r"^\*\*(\w+)\.?\*\*", text, re.MULTILINE) == ["Impact", "Diagnosis", "Mitigation"]
    assert "```sh\n" in text.partition("**Diagnosis")[2], "a diagnosis is commands"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_panel_asks_for_exported_series_and_says_its_unit(panel: dict[str, Any]) -> None:
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"].get("unit")
    for target in panel["targets"]:
        text = target["expr"].replace("$__rate_interval", "5m")
        query = parse(re.sub(r"\$\w+", "x", text))
        check(query)
        assert not query.bare, "two lines of one name while a pod of ours is replaced"
        assert not query.summed, "twice as much while a pod of ours is replaced"
        assert target["interval"] == "30s", "the chart puts the PodMonitor's interval there"


def test_no_two_panels_stand_in_the_same_place() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    ("text", "bare", "summed"),
    [
        ("a == 0", ["a"], []),
        ("max by (x) (a) / b", ["b"], []),
        ("max by (x) (a) == 0 unless on (x) b", [], []),
        ("max by (x) (a) and (b) or c", ["c"], []),
        ("sum by (x) (a)", [], ["a"]),
        ("sum by (x) (rate(a[5m]))", [], []),
        ("sum by (x) (max by (x, y) (a)) + b", ["b"], []),
    ],
)
def test_the_grammar_knows_what_is_aggregated(text: str, bare: list[str], summed: list[str]) -> None:
    query = parse(text)
    assert (query.bare, query.summed) == (bare, summed)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sum(rate(a[5m])) / 2", None),
        ('a > on (x, y) group_left () b unless on (x) c{d=~"e|f"}', None),
        ("rate(a)", "a range vector is missing"),
        ("sum(a[5m])", "where none belongs"),
        ("a[5m] > 1", "an operator on a range vector"),
        ("a{b=c}", "not label="),
        ("a and", "ends too early"),
        ("sum(a", "where ',' belongs"),
        ("a b", "after the end"),
        ("foo(a)", "no function"),
        ("a[5]", "no duration"),
    ],
)
def test_the_grammar_refuses_what_prometheus_would_refuse(text: str, problem: str | None) -> None:
    if problem is None:
        parse(text)
    else:
        with pytest.raises(PromqlError, match=problem):
            parse(text)
