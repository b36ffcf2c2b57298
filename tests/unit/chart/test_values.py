"""Values: what is refused by name, what is explained, and what is added to everything that the chart makes."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY
from tests.unit.chart.rendered import (
    CHART,
    NAMESPACE,
    VARIANTS,
    documents,
    every_variant,
    helm,
    needs_helm,
    of_kind,
    rendered,
)

pytestmark = needs_helm
ADJUSTED = ("operator", "webhook", "agent")


@every_variant
def test_helm_lint_has_nothing_to_say(variant: str) -> None:
    sets = [f"--set={value}" for value in VARIANTS[variant]]
    result = helm("lint", "--strict", str(CHART), *sets, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("simulaton.enabled=true", "simulaton"),
        ("image.tags=x", "tags"),
        ("cdi=Sometimes", "cdi"),
        ("certificates.mode=None", "mode"),
        ("operator.resources.limit.cpu=1", "limit"),
        ("driverRoot=run/nvidia", "driverRoot"),
        ("computeMode=EXCLUSIVE_PROCESS", "computeMode"),
        ("agent.gpuAccess=Unprivileged", "gpuAccess"),
        ("driverDirectories={}", "driverDirectories"),
        ("driverDirectories={../etc}", "driverDirectories"),
        ("driverDirectories={/usr}", "driverDirectories"),
        ("mps.resources.memory=16GB", "memory"),
        ("mps.resources.cpuLimit=lots", "cpuLimit"),
        ("mps.resources.cpuLimit=200m", "mps.resources.cpuLimit is 200m"),
        ("mps.seLinuxOptions.typ=spc_t", "typ"),
        ("mps.seLinuxOptions.type=spc_t' || true", "seLinuxOptions"),
        ("agent.seLinuxOptions.level=c1", "seLinuxOptions"),
        ("openshift.scc=true", "scc"),
        ("metrics.serviceMonitor.enabled=true", "serviceMonitor"),
        ("metrics.port=80", "port"),
        ("tenants.subjects[0].kind=ServiceAccount,tenants.subjects[0].name=ci", "namespace"),
        ("tenants.subjects[0].kind=Team,tenants.subjects[0].name=ml", "kind"),
        ("metrics.port=8081", "metrics.port is 8081, which is the port of the webhook's probes"),
        ("metrics.port=8443", "metrics.port is 8443, which is the port of the webhook"),
        ("webhook.port=8082", "webhook.port is 8082, which is the port of the agent's probes"),
        ("webhook.port=443", "port"),
        ("metrics.prometheusRule.runbooks=docs/runbooks", "runbooks"),
        ("operator.podLabels.app\\.kubernetes\\.io/name=x", 'operator.podLabels has "app.kubernetes.io/name"'),
        ("agent.extraEnv[0].name=NODE_NAME", 'agent.extraEnv has "NODE_NAME"'),
        ("webhook.extraEnv[0].name=1X", "extraEnv"),
    ],
)
def test_a_mistaken_value_is_refused_by_name(value: str, word: str) -> None:
    result = helm("template", str(CHART), f"--set={value}", check=False)
    assert result.returncode != 0
    assert word in result.stderr


def test_a_cluster_that_is_too_old_is_refused() -> None:
    result = helm("template", str(CHART), "--kube-version", "1.31.0", check=False)
    assert "1.32" in result.stderr


def test_every_value_is_in_the_schema_and_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    lines = (CHART / "values.yaml").read_text().splitlines()
    for key in yaml.safe_load("\n".join(lines)):
        assert key in schema["properties"]
        at = lines.index(next(line for line in lines if line.startswith(f"{key}:")))
        block = [lines[at - 1], *lines[at + 1 : at + 4]]
        assert any(line.lstrip().startswith("#") for line in block), f"{key} is not explained"


def explained() -> set[str]:
    """The paths of values.yaml that have a comment on their line or directly above it."""
    names, above, commented = set[str](), list[tuple[int, str]](), False
    for line in (CHART / "values.yaml").read_text().splitlines():
        if key := re.match(r"^( *)(\w+):(.*)$", line):
            above = [parent for parent in above if parent[0] < len(key[1])] + [(len(key[1]), key[2])]
            if commented or " #" in key[3]:
                names.add(".".join(name for _, name in above))
        commented = line.lstrip().startswith("#")
    return names


def leaves(values: dict[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_each_value_is_explained_field_by_field() -> None:
    """By itself, by what it is a part of, or where the operator has it: the parts' placement is alike."""
    told = explained()
    for name in leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        own = name.split(".")
        paths = {".".join(own[:count]) for count in range(1, len(own) + 1)}
        if own[0] in ("webhook", "agent", "ui"):
            paths = {path for path in paths if "." in path} | {f"operator.{own[1]}"}
        assert paths & told, f"{name} is not explained"


def test_each_value_is_used_by_a_template() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    for name in leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        own = name.split(".")
        paths = [".".join(own[:count]) for count in range(1, len(own) + 1)]
        whole = any(re.search(rf"\.Values\.{re.escape(path)}\b(?!\.)", text) for path in paths)
        assert whole, f"{name} is used nowhere"
        if not re.search(rf"\.Values\.{re.escape(name)}\b", text) and len(own) == 2:
            assert re.search(rf"\.{own[1]}\b", text), f"{name} is used nowhere"


def names_of(values: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Of each value whose default is neither an empty map nor a list."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from names_of(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            yield f"{prefix}{key}"


def test_the_chart_knows_the_names_of_its_values() -> None:
    names = (CHART / "files/value-names.txt").read_text().split()
    assert names == list(names_of(yaml.safe_load((CHART / "values.yaml").read_text())))


@pytest.mark.parametrize("missing", ["uninstall", "webhook.port", "webhook.failurePolicy.claims", "mps", "cdi"])
def test_values_of_an_older_chart_are_refused_with_the_remedy(missing: str) -> None:
    """As `helm upgrade --reuse-values` gives them: without what is new."""
    result = helm("template", str(CHART), f"--set={missing}=null", check=False)
    assert f"the value {missing}" in result.stderr
    assert "--reset-then-reuse-values" in result.stderr


def test_the_charts_readme_names_values_that_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| (`.*?) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-zA-Z.]+)`", row)]
    assert len(named) > 15
    for name in named:
        node = values["metrics"] if name.startswith(".") else values
        for key in name.strip(".").split("."):
            assert key in node, name
            node = node[key]


def test_an_administrators_labels_are_added_to_the_charts() -> None:
    values = {"podLabels": {"team": "ml"}, "podAnnotations": {"note": "x"}, "extraEnv": [{"name": "X", "value": "1"}]}
    text = helm(
        "template", "g", str(CHART), *(f"--set-json={part}={json.dumps(values)}" for part in ADJUSTED)
    ).stdout  # fmt: skip
    templates = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"]
        for item in documents(text)
        if item["kind"] in ("Deployment", "DaemonSet")
    }
    assert templates.keys() == set(ADJUSTED)
    for part, template in templates.items():
        labels = template["metadata"]["labels"]
        assert (labels["team"], labels["app.kubernetes.io/component"]) == ("ml", part)
        assert template["metadata"]["annotations"] == {"note": "x"}
        (container,) = template["spec"]["containers"]
        assert container["env"][-1] == {"name": "X", "value": "1"}


def test_the_icon_is_the_file_beside_it() -> None:
    icon = yaml.safe_load((CHART / "Chart.yaml").read_text())["icon"]
    assert (
        base64.b64decode(icon.removeprefix("data:image/svg+xml;base64,")) == (CHART / "icon.svg").read_bytes().strip()
    )


@every_variant
def test_definitions_come_with_the_chart_as_they_stand_in_crds(variant: str) -> None:
    golden = {
        (definition := yaml.safe_load(path.read_text()))["metadata"]["name"]: definition
        for path in Path(REPOSITORY / "crds").glob("*")
    }
    definitions = {item["metadata"]["name"]: item for item in of_kind(variant, "CustomResourceDefinition")}
    assert definitions.keys() == (set() if variant == "least" else golden.keys())
    for name, item in definitions.items():
        assert item["spec"] == golden[name]["spec"]
        assert item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@every_variant
def test_everything_is_labelled_and_selected_by_what_never_changes(variant: str) -> None:
    for item in rendered(variant):
        assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "gpushare", item["metadata"]["name"]
    for item in of_kind(variant, "Deployment", "DaemonSet"):
        selector = item["spec"]["selector"]["matchLabels"]
        assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/component"}
        assert selector.items() <= item["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "flags",
    [
        ["--set=agent.affinity=null"],
        ["--set=simulation.enabled=true", "--set=simulation.product=A: b #c"],
        ["--set-string=imagePullSecrets[0].name=12"],
        ["--set=driverRoot=/run: x"],
        ["--set=agent.gpuAccess=RuntimeClass", "--set-string=agent.runtimeClassName=12"],
    ],
    ids=lambda flags: flags[-1].partition("=")[2],
)
def test_values_that_yaml_could_read_otherwise_stay_what_they_are(flags: list[str]) -> None:
    text = helm("template", "gpushare", str(CHART), f"--namespace={NAMESPACE}", *flags).stdout
    for workload in (document for document in documents(text) if document["kind"] in ("Deployment", "DaemonSet")):
        spec = workload["spec"]["template"]["spec"]
        assert isinstance(spec.get("runtimeClassName", ""), str)
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            assert all(isinstance(argument, str) for argument in container.get("args", []))
            assert all(isinstance(variable.get("value", ""), str) for variable in container.get("env", []))
