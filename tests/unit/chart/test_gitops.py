"""What the chart renders for tools that apply manifests, compare them with what is there, and prune."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpushare.api.conditions import ShareReason
from localcluster.paths import REPOSITORY
from tests.unit.chart.rendered import (
    CHART,
    NAMESPACE,
    VARIANTS,
    Object,
    every_variant,
    helm,
    named,
    needs_helm,
    of_kind,
    rendered,
)

pytestmark = needs_helm
POLICIES = "ValidatingAdmissionPolicy"


def _annotations(item: Object) -> dict[str, str]:
    annotations: dict[str, str] = item["metadata"].get("annotations") or {}
    return annotations


def test_without_hooks_nothing_is_there_for_helm_alone() -> None:
    assert [item for item in rendered("applied") if "helm.sh/hook" in _annotations(item)] == []
    left = {(item["kind"], item["metadata"]["name"]) for item in rendered("applied")}
    hooks = {
        (item["kind"], item["metadata"]["name"]) for item in rendered("default") if "helm.sh/hook" in _annotations(item)
    }
    assert left == {(item["kind"], item["metadata"]["name"]) for item in rendered("default")} - hooks


def test_deleting_shares_at_an_uninstallation_needs_the_hooks() -> None:
    sets = ("--set=hooks.enabled=false", "--set=uninstall.shares=Delete")
    assert "leave it at Refuse" in helm("template", str(CHART), *sets, check=False).stderr


@pytest.mark.parametrize("variant", ["default", "applied", "everything"])
def test_what_shares_need_to_end_is_guarded_whoever_deletes_it(variant: str) -> None:
    policy = named(variant, POLICIES, "gpushare-uninstall")["spec"]
    guarded = {
        (resource, name)
        for rule in policy["matchConstraints"]["resourceRules"]
        if rule["operations"] == ["DELETE"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    assert {
        ("customresourcedefinitions", "gpushares.gpushare.dev"),
        ("namespaces", NAMESPACE),
        ("deployments", "gpushare-operator"),
        ("daemonsets", "gpushare-agent"),
        ("clusterroles", "gpushare-operator"),
        ("serviceaccounts", "gpushare-agent"),
    } <= guarded
    parts = [item for item in rendered(variant) if item["metadata"]["name"] in ("gpushare-operator", "gpushare-agent")]
    kinds = {item["kind"].lower() + "s" for item in parts} - {"leases", "networkpolicys", "poddisruptionbudgets"}
    assert kinds <= {resource for resource, _ in guarded}, "of these nothing is left out"


@every_variant
def test_no_object_has_what_the_api_server_leaves_out(variant: str) -> None:
    """A null, or a variable without a value, is compared with its absence at each apply."""
    empty = [
        f"{item['kind']} {item['metadata']['name']}{path}"
        for item in rendered(variant)
        if item["kind"] != "CustomResourceDefinition"
        for path in _nulls(item)
    ]
    assert empty == []


def _nulls(value: Any, path: str = "") -> Iterator[str]:
    if value is None or (isinstance(value, dict) and value.get("value") == ""):
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _nulls(entry, f"{path}.{key}")


@every_variant
def test_lists_that_are_compared_as_a_whole_have_their_defaults(variant: str) -> None:
    """kubectl apply replaces a list without keys whenever the API server has filled in a field of an entry."""
    for item in of_kind(variant, POLICIES):
        for rule in item["spec"]["matchConstraints"]["resourceRules"]:
            assert "scope" in rule, item["metadata"]["name"]
    for item in of_kind(variant, "NetworkPolicy"):
        for entry in item["spec"].get("ingress", ()):
            assert all("protocol" in port for port in entry["ports"]), item["metadata"]["name"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_pods_have_the_one_image_and_its_secrets(variant: str) -> None:
    """So that a mirror, or a network without any registry of others, needs one name."""
    templates = [item["spec"]["template"]["spec"] for item in rendered(variant) if "template" in item.get("spec", {})]
    containers = [each for spec in templates for each in (*spec["containers"], *spec.get("initContainers", ()))]
    assert len({container["image"] for container in containers}) == 1
    assert len({str(spec.get("imagePullSecrets")) for spec in templates}) == 1


def test_the_images_of_a_release_are_listed_by_digest_as_the_page_says() -> None:
    page = (REPOSITORY / "docs/enabling.md").read_text()
    assert "helm template … | grep -oE 'image: .*' | sort -u" in page
    text = helm("template", "g", str(CHART), "--set=image.digest=sha256:" + "0" * 64, "--set=ui.enabled=true",
                "--set=ui.hosts={gpus.example.com}").stdout  # fmt: skip
    images = set(re.findall(r"image: .*", text))
    assert len(images) == 1
    assert images.pop().strip('"').endswith("@sha256:" + "0" * 64)


def test_the_health_check_for_argo_cd_knows_reasons_that_there_are() -> None:
    """A share that only starts or drains is in progress; whatever else keeps it from Ready is degraded."""
    page = (REPOSITORY / "docs/enabling.md").read_text()
    (listed,) = re.findall(r"\(\{(.*)\}\)\[condition\.reason\]", page)
    assert set(re.findall(r"(\w+) = 1", listed)) == {
        ShareReason.DAEMONS_STARTING,
        ShareReason.DRAINING,
        ShareReason.RELEASING,
    }
    group, kind = re.findall(r"resource\.customizations\.health\.([\w.]+)_(\w+):", page)[0]
    definition = yaml.safe_load((REPOSITORY / "crds/gpushare.dev_gpushares.yaml").read_text())["spec"]
    assert (group, kind) == (definition["group"], definition["names"]["kind"])


def test_helpers_start_under_a_quota_of_any_amount() -> None:
    """Such a quota refuses a container that does not name the amount; those of the parts have values for it."""
    jobs = [item for variant in ("default", "everything") for item in of_kind(variant, "Job")]
    assert {item["metadata"]["name"] for item in jobs} == {"gpushare-test", "gpushare-uninstall"}
    for item in jobs:
        (container,) = item["spec"]["template"]["spec"]["containers"]
        assert {(kind, amount) for kind, amounts in container["resources"].items() for amount in amounts} == {
            (kind, amount) for kind in ("requests", "limits") for amount in ("cpu", "memory")
        }


@pytest.mark.parametrize(("pods", "written"), [(100000, "100k"), (1500, "1500"), (2000000, "2M"), (7, "7")])
def test_the_quota_is_written_as_the_api_server_writes_it(pods: int, written: str) -> None:
    text = helm("template", "g", str(CHART), f"--set=resourceQuota.pods={pods}").stdout
    assert f'pods: "{written}"' in text


def test_a_strategy_has_its_type() -> None:
    """Without it kubectl removes and adds it at each apply."""
    for item in of_kind("default", "Deployment"):
        assert "type" in item["spec"].get("strategy", {"type": ""})
