"""What an uninstallation removes, and what refuses it."""

import pytest

from gpushare.controller.webhook_certificates.keep import LABELS
from tests.unit.chart.rendered import (
    NAMESPACE,
    VARIANTS,
    Object,
    containers,
    every_variant,
    named,
    needs_helm,
    of_kind,
    rendered,
)

pytestmark = needs_helm


def test_the_uninstallation_job_deletes_shares_only_if_chosen() -> None:
    job = named("everything", "Job", "gpushare-uninstall")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (shares, nodes) = named("everything", "ClusterRole", "gpushare-uninstall")["rules"]
    assert (shares["verbs"], nodes["verbs"]) == (["list", "delete"], ["list"])
    assert "gpushare-uninstall" not in {item["metadata"]["name"] for item in of_kind("everything", "ConfigMap")}


def test_the_uninstallation_job_is_retried_unless_it_refused() -> None:
    job = named("everything", "Job", "gpushare-uninstall")["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    refused = {"containerName": container["name"], "operator": "In", "values": [1]}
    assert (job["backoffLimit"], rule) == (3, {"action": "FailJob", "onExitCodes": refused})
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy takes no other"


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in ("everything", "applied")])
def test_else_an_uninstallation_needs_no_pod_and_is_refused_by_policies(variant: str) -> None:
    """An image that cannot be pulled must not keep anybody from uninstalling."""
    hooks = [item for item in rendered(variant) if "pre-delete" in annotations(item).get("helm.sh/hook", "")]
    assert [(item["kind"], item["metadata"]["name"]) for item in hooks] == [("ConfigMap", "gpushare-uninstall")]
    assert "uninstall" not in {
        role["metadata"]["name"].removeprefix("gpushare-") for role in of_kind(variant, "ClusterRole")
    }
    policy = named(variant, "ValidatingAdmissionPolicy", "gpushare-uninstall")["spec"]
    assert policy["paramKind"]["kind"] == "GpuShare"
    *_, rule = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["resourceNames"]) == (["configmaps"], ["gpushare-uninstall"])
    (validation,) = policy["validations"]
    assert f"helm rollback gpushare 1 --namespace {NAMESPACE}'" in validation["messageExpression"]


def annotations(item: Object) -> dict[str, str]:
    annotations: dict[str, str] = item["metadata"].get("annotations") or {}
    return annotations


@every_variant
def test_objects_of_the_operator_belong_to_the_release(variant: str) -> None:
    environment = {entry["name"]: entry.get("value") for entry in dict(containers(variant))["gpushare-operator"]["env"]}
    secrets = {environment["GPUSHARE_WEBHOOK_SECRET"], environment["GPUSHARE_AUTHORITY_SECRET"]}
    ours = set() if variant == "everything" else secrets  # cert-manager makes its own
    assert {item["metadata"]["name"] for item in of_kind(variant, "Secret")} == ours
    assert [item["metadata"]["name"] for item in of_kind(variant, "Lease")] == ["gpushare-operator"]
    for item in of_kind(variant, "Secret"):
        assert item["metadata"]["labels"].items() >= LABELS.items(), (
            "else a server-side apply over the operator's fails"
        )
    for item in of_kind(variant, "Secret", "Lease"):
        assert not {"data", "stringData", "spec"} & item.keys(), "an upgrade would take away what the operator wrote"
