"""Roles: nobody may do more than the part needs, and viewers read shares."""

import re

from gpushare.api.gpunode import GpuNodeStatus
from tests.unit.chart.rendered import NAMESPACE, every_variant, named, needs_helm, of_kind

pytestmark = needs_helm


@every_variant
def test_no_role_is_wide(variant: str) -> None:
    for role in of_kind(variant, "ClusterRole", "Role"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
            if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                assert rule["resourceNames"] in (["gpushare-webhook-tls"], ["gpushare-webhook-ca"])
            assert not (role["kind"] == "ClusterRole" and "secrets" in rule["resources"])


@every_variant
def test_viewers_and_tenants_may_read_shares_and_nothing_else(variant: str) -> None:
    role = named(variant, "ClusterRole", "gpushare-view")
    assert role["rules"] == [
        {"apiGroups": ["gpushare.dev"], "resources": ["gpushares"], "verbs": ["get", "list", "watch"]}
    ]
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    bound = [item for item in of_kind(variant, "ClusterRoleBinding") if item["metadata"]["name"] == "gpushare-tenants"]
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ml"}
    account = {"apiGroup": "", "kind": "ServiceAccount", "name": "ci", "namespace": "ml"}
    assert [binding["subjects"] for binding in bound] == ([[group, account]] if variant == "everything" else [])
    assert all(binding["roleRef"]["name"] == "gpushare-view" for binding in bound)


def test_only_the_operator_reads_the_authoritys_key() -> None:
    readers = {
        (role["metadata"]["name"], *rule["verbs"])
        for role in of_kind("default", "ClusterRole", "Role")
        for rule in role["rules"]
        if "gpushare-webhook-ca" in rule.get("resourceNames", [])
    }
    assert readers == {("gpushare-operator", "get", "patch")}


def test_the_operator_touches_no_secrets_beside_cert_manager() -> None:
    resources = {
        resource
        for role in of_kind("everything", "ClusterRole", "Role")
        if role["metadata"]["name"].startswith("gpushare-operator")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert not {"secrets", "mutatingwebhookconfigurations"} & resources
    assert named("everything", "Certificate", "gpushare-webhook")["spec"]["secretName"] == "gpushare-webhook-tls"
    for configuration in of_kind("everything", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = configuration["metadata"]["annotations"]
        assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/gpushare-webhook"


def test_the_policy_of_a_gpunodes_status_names_all_that_agents_report() -> None:
    policy = named("default", "ValidatingAdmissionPolicy", "gpushare-operator-gpunode-status")
    held = re.findall(r"'(\w+)'", policy["spec"]["validations"][1]["expression"])
    assert sorted([*held, "conditions"]) == sorted(
        field.alias or name for name, field in GpuNodeStatus.model_fields.items()
    )
