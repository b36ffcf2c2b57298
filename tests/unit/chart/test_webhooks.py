"""Webhooks and admission policies: whom they ask about, and what an outage of theirs holds up."""

import json

from gpushare.api.gpunode import GpuNodeStatus
from tests.unit.chart.rendered import NAMESPACE, containers, every_variant, named, needs_helm, of_kind

pytestmark = needs_helm


@every_variant
def test_pod_webhooks_touch_only_pods_that_ask_for_a_share(variant: str) -> None:
    hooks = [
        hook
        for item in of_kind(variant, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in item["webhooks"]
    ]
    assert len(hooks) == 9
    for hook in hooks:
        assert (hook["sideEffects"], hook["matchConditions"][0]["expression"] != "") == ("None", True)
        assert "caBundle" not in hook["clientConfig"], "it is the operator's to make, or cert-manager's"
        if hook["name"].partition(".")[0] in ("pods", "claim-pods", "departures", "owners"):
            (selector,) = hook["namespaceSelector"]["matchExpressions"]
            assert (selector["operator"], selector["values"]) == ("NotIn", ["kube-system", NAMESPACE])


def test_the_failure_policy_is_chosen_per_hook() -> None:
    (configuration,) = of_kind("everything", "ValidatingWebhookConfiguration")
    assert {hook["name"]: hook["failurePolicy"] for hook in configuration["webhooks"]} == {
        "pods.gpushare.dev": "Fail",
        "claim-pods.gpushare.dev": "Ignore",
        "claims.gpushare.dev": "Fail",
        "shares.gpushare.dev": "Ignore",
        "departures.gpushare.dev": "Ignore",
        "owners.gpushare.dev": "Ignore",
    }


@every_variant
def test_an_outage_of_the_webhook_holds_up_no_deletion(variant: str) -> None:
    for item in of_kind(variant, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        asked = [hook for hook in item["webhooks"] if any("DELETE" in rule["operations"] for rule in hook["rules"])]
        assert {hook["name"] for hook in asked} <= {"departures.gpushare.dev"}
        for hook in asked:
            assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
            conditions = " ".join(condition["expression"] for condition in hook["matchConditions"])
            assert "'system:nodes', 'system:serviceaccounts:kube-system'" in conditions


@every_variant
def test_an_outage_never_holds_up_who_deploys_and_controllers_do_not_ask(variant: str) -> None:
    (configuration,) = of_kind(variant, "ValidatingWebhookConfiguration")
    (hook,) = [hook for hook in configuration["webhooks"] if hook["name"] == "owners.gpushare.dev"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    assert "'system:serviceaccounts:kube-system'" in hook["matchConditions"][0]["expression"]


@every_variant
def test_an_outage_never_holds_up_pods_whose_claims_may_be_another_drivers(variant: str) -> None:
    for item in of_kind(variant, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (hook,) = [hook for hook in item["webhooks"] if hook["name"] == "claim-pods.gpushare.dev"]
        assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 3)


@every_variant
def test_every_policy_is_bound_and_fails_closed_but_those_that_only_warn(variant: str) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(variant, "ValidatingAdmissionPolicy")}
    bindings = [item["spec"] for item in of_kind(variant, "ValidatingAdmissionPolicyBinding")]
    assert {binding["policyName"] for binding in bindings} == policies.keys()
    warns = {"gpushare-annotations", "gpushare-ephemeral-containers", "gpushare-node-deletions"}
    last = {"gpushare-uninstall"}
    for binding in bindings:
        name = binding["policyName"]
        assert binding["validationActions"] == (["Warn"] if name in warns else ["Deny"])
        assert policies[name]["failurePolicy"] == ("Ignore" if name in warns | last else "Fail")
    assert len(policies) == {"least": 1, "everything": 21}.get(variant, 22)


def test_no_webhook_is_asked_about_a_pod_that_exists() -> None:
    """It has to be able to change and to end while none answers: finalizers, labels, owners."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (configuration,) = of_kind("default", kind)
        for rule, policy in (
            (rule, hook["failurePolicy"]) for hook in configuration["webhooks"] for rule in hook["rules"]
        ):
            warns = rule["operations"] == ["DELETE"] and policy == "Ignore"
            assert warns or "pods" not in rule["resources"] or rule["operations"] == ["CREATE"]


def test_the_webhook_asks_for_certificates_of_the_authority() -> None:
    told = {}
    for variant in ("default", "everything"):
        container = dict(containers(variant))["gpushare-webhook"]
        settings = {entry["name"]: entry.get("value") for entry in container["env"]}
        named = [argument for argument in container["args"] if argument.startswith("--client-name")]
        told[variant] = (settings.get("GPUSHARE_WEBHOOK_CLIENT_AUTHORITY"), named)
    assert told == {
        "default": (None, []),
        "everything": ("-----BEGIN CERTIFICATE-----", ["--client-name=kube-apiserver"]),
    }


def test_the_operator_may_write_only_conditions_of_a_gpunode() -> None:
    policy = json.dumps(named("default", "ValidatingAdmissionPolicy", "gpushare-operator-gpunode-status"))
    fields = GpuNodeStatus.model_json_schema(by_alias=True)["properties"].keys() - {"conditions"}
    assert [field for field in fields if f"'{field}'" not in policy] == []
