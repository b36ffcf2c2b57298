"""What the chart renders: least rights, nothing of the node beyond a short list, the same settings everywhere."""

import base64
import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.api.gpunode import GpuNodeStatus
from localcluster.paths import REPOSITORY, cache_root

CHART = REPOSITORY / "charts" / "gpushare"
NAMESPACE = "gpu-home"
Object = dict[str, Any]

VARIANTS = {
    "default": (),
    "simulated": ("simulation.enabled=true",),
    "everything": (
        "certificates.mode=CertManager",
        "networkPolicy.enabled=true",
        "operator.replicas=2",
        "imagePullSecrets[0].name=one",
        "imagePullSecrets[1].name=two",
        "image.tag=v9",
        "image.digest=sha256:" + "0" * 64,
        "driverRoot=/run/nvidia/driver",
        "computeMode=Leave",
        "agent.gpuAccess=RuntimeClass",
        "agent.runtimeClassName=nvidia-cdi",
        "webhook.failurePolicy.shares=Ignore",
        "webhook.clientCertificates.authority=-----BEGIN CERTIFICATE-----",
        "webhook.clientCertificates.names[0]=kube-apiserver",
        "uninstall.shares=Delete",
        "metrics.port=9500",
        "metrics.from[0].namespaceSelector.matchLabels.team=watchers",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
        "metrics.podMonitor.interval=1m",
        "metrics.prometheusRule.enabled=true",
        "metrics.prometheusRule.runbooks=https://wiki.example/gpushare/",
        "metrics.dashboard.enabled=true",
        "tenants.subjects[0].kind=Group",
        "tenants.subjects[0].name=ml",
        "tenants.subjects[1].kind=ServiceAccount",
        "tenants.subjects[1].name=ci",
        "tenants.subjects[1].namespace=ml",
    ),
    "unprivileged": ("agent.gpuAccess=RuntimeClass", "driverDirectories={usr,etc/alternatives}"),
    "lean": ("agent.gpuAccess=RuntimeClass",),
    "page": (
        "ui.enabled=true",
        "ui.hosts={gpus.example.com,gpus}",
        "ui.from[0].namespaceSelector.matchLabels.team=ingress",
        "networkPolicy.enabled=true",
    ),
    "least": (
        "crds.enabled=false",
        "policies.enabled=false",
        "resourceQuota.enabled=false",
        "webhook.replicas=1",
        "metrics.enabled=false",
    ),
}
UNPRIVILEGED = {"unprivileged": ["KILL", "SYS_ADMIN"], "lean": ["KILL", "SYS_ADMIN"], "everything": ["KILL"]}
"""By variant, the capabilities of an agent that is not privileged; SYS_ADMIN only where it sets compute modes."""
HOST_PATHS = {
    "gpushare-agent": {
        "/run/gpushare",
        "/run/gpushare-simulation",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/pod-resources",
        "/var/run/cdi",
        "/usr",  # the driver's files, read-only, where GPUs are real
        "/etc/alternatives",
        "/run/nvidia/driver",
    },
    "gpushare-simulated-driver": {"/run/gpushare-simulation"},
}


def helm_program() -> str | None:
    cached = sorted(cache_root().glob("helm-*/helm"), key=os.path.getmtime)
    return os.environ.get("HELM") or shutil.which("helm") or (str(cached[-1]) if cached else None)


HELM = helm_program()
pytestmark = pytest.mark.skipif(HELM is None, reason="no helm: set HELM, or run `make cluster-build`")


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=check)


@cache
def rendered(variant: str) -> list[Object]:
    sets = [f"--set={value}" for value in VARIANTS[variant]]
    text = helm("template", "gpushare", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.37.0", *sets).stdout
    return [item for item in yaml.safe_load_all(text) if item]


def of_kind(variant: str, *kinds: str) -> list[Object]:
    return [item for item in rendered(variant) if item["kind"] in kinds]


def named(variant: str, kind: str, name: str) -> Object:
    (found,) = [item for item in of_kind(variant, kind) if item["metadata"]["name"] == name]
    return found


def workloads(variant: str) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that runs, hooks included."""
    for item in of_kind(variant, "Deployment", "DaemonSet", "Job"):
        yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def containers(variant: str) -> Iterator[tuple[str, Object]]:
    for name, pod in workloads(variant):
        for container in pod["containers"]:
            yield name, container


every_variant = pytest.mark.parametrize("variant", VARIANTS)


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
        ("metrics.serviceMonitor.enabled=true", "serviceMonitor"),
        ("metrics.port=80", "port"),
        ("tenants.subjects[0].kind=ServiceAccount,tenants.subjects[0].name=ci", "namespace"),
        ("tenants.subjects[0].kind=Team,tenants.subjects[0].name=ml", "kind"),
        ("metrics.port=8081", "metrics.port is 8081, which is the port of the webhook's probes"),
        ("metrics.port=8443", "metrics.port is 8443, which is the port of the webhook"),
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


def test_the_charts_readme_names_values_that_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = re.findall(r"^\| (`.*?) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-zA-Z.]+)`", row)]
    assert len(named) > 15
    for name in named:
        found = values["metrics"] if name.startswith(".") else values
        for key in name.strip(".").split("."):
            assert key in found, name
            found = found[key]


@every_variant
def test_every_container_is_bounded_and_has_a_read_only_root(variant: str) -> None:
    for name, container in containers(variant):
        assert container["resources"]["requests"]["cpu"], name
        assert container["resources"]["limits"]["memory"], name
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


@every_variant
def test_every_container_drops_all_capabilities_but_an_agent_that_is_privileged(variant: str) -> None:
    for name, container in containers(variant):
        security = container["securityContext"]
        if name == "gpushare-agent" and variant not in UNPRIVILEGED:
            assert security == {"privileged": True, "readOnlyRootFilesystem": True}
            continue
        added = {"add": UNPRIVILEGED[variant]} if name == "gpushare-agent" else {}
        assert security["capabilities"] == {"drop": ["ALL"], **added}, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert "privileged" not in security, name


def test_an_unprivileged_agent_gets_device_nodes_from_the_runtime_and_a_privileged_one_keeps_it_away() -> None:
    for variant, runtime in (("default", None), ("unprivileged", "nvidia"), ("everything", "nvidia-cdi")):
        pod = dict(workloads(variant))["gpushare-agent"]
        environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        assert pod.get("runtimeClassName") == runtime
        assert environment["NVIDIA_VISIBLE_DEVICES"] == ("all" if runtime else "void")
        assert environment.get("NVIDIA_DRIVER_CAPABILITIES") == ("utility" if runtime else None)


def test_a_simulated_agent_runs_with_the_privileges_of_a_real_one() -> None:
    """Else the tests on a cluster, whose GPUs are simulated, would say nothing about production."""
    simulated, real = (
        copy.deepcopy(dict(workloads(variant))["gpushare-agent"]) for variant in ("simulated", "default")
    )
    for pod in (simulated, real):
        (container,) = pod["containers"]
        ours = {"run", "device-plugins", "pod-resources", "plugins-registry", "cdi"}
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] in ours]
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] in ours]
        container["args"] = [it for it in container["args"] if not it.startswith(("--simulation", "--driver-"))]
    assert simulated == real


@every_variant
def test_every_pod_runs_under_seccomp_and_only_node_parts_as_root(variant: str) -> None:
    for name, pod in workloads(variant):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        on_node = name in HOST_PATHS
        assert pod["securityContext"].get("runAsNonRoot", False) is not on_node, name
        assert pod.get("hostPID", False) is on_node, name
        assert not {"hostNetwork", "hostIPC"} & pod.keys(), name


@every_variant
def test_no_pod_sees_more_of_the_node_than_listed(variant: str) -> None:
    for name, pod in workloads(variant):
        for volume in pod.get("volumes", []):
            assert volume.keys() == {"name", "hostPath"}, name
            assert volume["hostPath"]["path"] in HOST_PATHS[name], name


@pytest.mark.parametrize(
    ("variant", "root", "mounts"),
    [
        ("default", "/", {"/driver-root/usr": "/usr"}),
        ("unprivileged", "/", {"/driver-root/usr": "/usr", "/driver-root/etc/alternatives": "/etc/alternatives"}),
        ("everything", "/run/nvidia/driver", {"/driver-root": "/run/nvidia/driver"}),
    ],
)
def test_of_the_node_the_agent_sees_the_driver_alone_read_only(variant: str, root: str, mounts: dict[str, str]) -> None:
    """A driver root that is a driver container's is mounted whole, so that a driver that is mounted anew is seen."""
    pod = dict(workloads(variant))["gpushare-agent"]
    (container,) = pod["containers"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    found = [it for it in container["volumeMounts"] if it["mountPath"].startswith("/driver-root")]
    assert {mount["mountPath"]: paths[mount["name"]] for mount in found} == mounts
    assert {(mount["readOnly"], mount["mountPropagation"]) for mount in found} == {(True, "HostToContainer")}
    assert f"--driver-root={root}" in container["args"]


def test_compute_modes_are_managed_unless_the_administrator_keeps_them() -> None:
    for variant, modes in (("default", "Manage"), ("everything", "Leave")):
        arguments = dict(workloads(variant))["gpushare-agent"]["containers"][0]["args"]
        assert f"--compute-mode={modes}" in arguments


@every_variant
def test_only_parts_that_talk_to_the_api_have_a_token(variant: str) -> None:
    tokens = {name for name, pod in workloads(variant) if pod["automountServiceAccountToken"]}
    talking = {"gpushare-operator", "gpushare-webhook", "gpushare-agent", "gpushare-test"}
    assert tokens == talking | {"everything": {"gpushare-uninstall"}, "page": {"gpushare-ui"}}.get(variant, set())
    assert all(not account["automountServiceAccountToken"] for account in of_kind(variant, "ServiceAccount"))


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
    bound = [it for it in of_kind(variant, "ClusterRoleBinding") if it["metadata"]["name"] == "gpushare-tenants"]
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ml"}
    account = {"apiGroup": "", "kind": "ServiceAccount", "name": "ci", "namespace": "ml"}
    assert [it["subjects"] for it in bound] == ([[group, account]] if variant == "everything" else [])
    assert all(it["roleRef"]["name"] == "gpushare-view" for it in bound)


def test_only_the_operator_reads_the_authoritys_key() -> None:
    readers = {
        (role["metadata"]["name"], *rule["verbs"])
        for role in of_kind("default", "ClusterRole", "Role")
        for rule in role["rules"]
        if "gpushare-webhook-ca" in rule.get("resourceNames", [])
    }
    assert readers == {("gpushare-operator", "get", "patch")}


def test_with_cert_manager_the_operator_touches_neither_secrets_nor_webhook_configurations() -> None:
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
def test_an_outage_never_holds_up_a_deletion_and_neither_kubelets_nor_controllers_ask(variant: str) -> None:
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
def test_all_parts_run_the_image_that_the_policy_pins(variant: str) -> None:
    images = {container["image"] for _, container in containers(variant)}
    pinned = f"registry.example.com/gpushare/operator:v9@sha256:{'0' * 64}"
    assert images == {pinned if variant == "everything" else "registry.example.com/gpushare/operator:0.1.0"}
    (image,) = images
    (operator,) = [container for name, container in containers(variant) if name == "gpushare-operator"]
    environment = {entry["name"]: entry.get("value") for entry in operator["env"]}
    assert environment["GPUSHARE_IMAGE"] == image
    assert environment["GPUSHARE_IMAGE_PULL_SECRETS"] == ("one,two" if variant == "everything" else "")
    if variant != "least":
        policy = named(variant, "ValidatingAdmissionPolicy", "gpushare-operator-daemonsets")
        assert f"== '{image}'" in json.dumps(policy)


@every_variant
def test_simulation_is_switched_on_in_every_part_or_in_none(variant: str) -> None:
    simulated = variant == "simulated"
    arguments = {name: container.get("args", ()) for name, container in containers(variant)}
    assert ("gpushare-simulated-driver" in arguments) is simulated
    for name in ("gpushare-operator", "gpushare-agent"):
        assert ("--simulation" in arguments[name]) is simulated


@every_variant
def test_every_policy_is_bound_and_fails_closed_but_those_that_only_warn(variant: str) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(variant, "ValidatingAdmissionPolicy")}
    bindings = [item["spec"] for item in of_kind(variant, "ValidatingAdmissionPolicyBinding")]
    assert {binding["policyName"] for binding in bindings} == policies.keys()
    warns, last = {"gpushare-annotations", "gpushare-ephemeral-containers"}, {"gpushare-uninstall"}
    for binding in bindings:
        name = binding["policyName"]
        assert binding["validationActions"] == (["Warn"] if name in warns else ["Deny"])
        assert policies[name]["failurePolicy"] == ("Ignore" if name in warns | last else "Fail")
    assert len(policies) == {"least": 1, "everything": 17}.get(variant, 19)


def test_no_webhook_is_asked_about_a_pod_that_exists() -> None:
    """It has to be able to change and to end while none answers: finalizers, labels, owners."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (configuration,) = of_kind("default", kind)
        for rule, policy in (
            (rule, hook["failurePolicy"]) for hook in configuration["webhooks"] for rule in hook["rules"]
        ):
            warns = rule["operations"] == ["DELETE"] and policy == "Ignore"
            assert warns or "pods" not in rule["resources"] or rule["operations"] == ["CREATE"]


def test_the_webhook_asks_for_client_certificates_where_an_authority_is_set() -> None:
    found = {}
    for variant in ("default", "everything"):
        container = dict(containers(variant))["gpushare-webhook"]
        settings = {entry["name"]: entry.get("value") for entry in container["env"]}
        named = [one for one in container["args"] if one.startswith("--client-name")]
        found[variant] = (settings.get("GPUSHARE_WEBHOOK_CLIENT_AUTHORITY"), named)
    assert found == {
        "default": (None, []),
        "everything": ("-----BEGIN CERTIFICATE-----", ["--client-name=kube-apiserver"]),
    }


def test_the_operator_is_held_off_every_field_of_a_gpunodes_status_but_its_conditions() -> None:
    policy = json.dumps(named("default", "ValidatingAdmissionPolicy", "gpushare-operator-gpunode-status"))
    fields = GpuNodeStatus.model_json_schema(by_alias=True)["properties"].keys() - {"conditions"}
    assert [field for field in fields if f"'{field}'" not in policy] == []


def test_the_priority_classes_come_with_the_quota_that_some_platforms_want() -> None:
    classes = {
        pod["priorityClassName"]
        for variant in VARIANTS
        for name, pod in workloads(variant)
        if name != "gpushare-ui"  # of the cluster's default: nothing depends on it
    }
    (quota,) = of_kind("default", "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert classes == set(scope["values"])


def test_before_an_uninstallation_a_job_deletes_shares_only_where_that_was_chosen() -> None:
    job = named("everything", "Job", "gpushare-uninstall")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (shares, nodes) = named("everything", "ClusterRole", "gpushare-uninstall")["rules"]
    assert (shares["verbs"], nodes["verbs"]) == (["list", "delete"], ["list"])
    assert "gpushare-uninstall" not in {item["metadata"]["name"] for item in of_kind("everything", "ConfigMap")}


def test_that_job_is_tried_again_where_its_pod_was_ended_and_not_where_it_refused() -> None:
    job = named("everything", "Job", "gpushare-uninstall")["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    refused = {"containerName": container["name"], "operator": "In", "values": [1]}
    assert (job["backoffLimit"], rule) == (3, {"action": "FailJob", "onExitCodes": refused})
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy takes no other"


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "everything"])
def test_else_an_uninstallation_needs_no_pod_and_is_refused_by_policies(variant: str) -> None:
    """An image that cannot be pulled must not keep anybody from uninstalling."""
    hooks = [item for item in rendered(variant) if "pre-delete" in annotations(item).get("helm.sh/hook", "")]
    assert [(item["kind"], item["metadata"]["name"]) for item in hooks] == [("ConfigMap", "gpushare-uninstall")]
    assert "uninstall" not in {
        role["metadata"]["name"].removeprefix("gpushare-") for role in of_kind(variant, "ClusterRole")
    }
    policy = named(variant, "ValidatingAdmissionPolicy", "gpushare-uninstall")["spec"]
    assert policy["paramKind"]["kind"] == "GpuShare"
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["resourceNames"]) == (["configmaps"], ["gpushare-uninstall"])
    (validation,) = policy["validations"]
    assert f"helm rollback gpushare 1 --namespace {NAMESPACE}'" in validation["messageExpression"]


def annotations(item: Object) -> dict[str, str]:
    found: dict[str, str] = item["metadata"].get("annotations") or {}
    return found


@every_variant
def test_what_the_operator_writes_is_of_the_release_so_that_an_uninstallation_removes_it(variant: str) -> None:
    environment = {entry["name"]: entry.get("value") for entry in dict(containers(variant))["gpushare-operator"]["env"]}
    secrets = {environment["GPUSHARE_WEBHOOK_SECRET"], environment["GPUSHARE_AUTHORITY_SECRET"]}
    ours = set() if variant == "everything" else secrets  # cert-manager makes its own
    assert {item["metadata"]["name"] for item in of_kind(variant, "Secret")} == ours
    assert [item["metadata"]["name"] for item in of_kind(variant, "Lease")] == ["gpushare-operator"]
    for item in of_kind(variant, "Secret", "Lease"):
        assert not {"data", "stringData", "spec"} & item.keys(), "an upgrade would take away what the operator wrote"


def test_an_agent_never_overlaps_with_its_successor() -> None:
    strategy = named("default", "DaemonSet", "gpushare-agent")["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_replicas_are_spread_and_kept_through_a_drain() -> None:
    assert {item["metadata"]["name"] for item in of_kind("default", "PodDisruptionBudget")} == {"gpushare-webhook"}
    assert len(of_kind("everything", "PodDisruptionBudget")) == 2
    for name, pod in workloads("everything"):
        if name not in HOST_PATHS and name not in ("gpushare-uninstall", "gpushare-test"):
            (spread,) = pod["topologySpreadConstraints"]
            assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_network_policies_cover_every_part_and_give_mps_pods_no_network() -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind("everything", "NetworkPolicy")}
    assert policies.keys() == {
        f"gpushare-{part}" for part in ("operator", "webhook", "agent", "mps", "simulated-driver")
    }
    assert policies["gpushare-mps"]["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & policies["gpushare-mps"].keys()


@every_variant
def test_operator_webhook_and_agent_serve_metrics_on_a_port_of_their_own(variant: str) -> None:
    port = {"least": None, "everything": 9500}.get(variant, 9408)
    for name, container in containers(variant):
        ports = {it["name"]: it["containerPort"] for it in container.get("ports", [])}
        silent = ("gpushare-simulated-driver", "gpushare-uninstall", "gpushare-test", "gpushare-ui")
        served = None if name in silent else port
        assert ports.get("metrics") == served, name
        assert (f"--metrics-port={served}" in container.get("args", ())) is (served is not None), name
        assert len(set(ports.values())) == len(ports), name


def test_only_those_who_are_named_may_scrape() -> None:
    for name in ("gpushare-operator", "gpushare-webhook", "gpushare-agent"):
        rules = named("everything", "NetworkPolicy", name)["spec"]["ingress"]
        (scrape,) = [rule for rule in rules if {"port": 9500} in rule["ports"]]
        assert scrape == {
            "ports": [{"port": 9500}],
            "from": [{"namespaceSelector": {"matchLabels": {"team": "watchers"}}}],
        }
    closed = helm(
        "template", "g", str(CHART), "--set=networkPolicy.enabled=true", "--show-only=templates/networkpolicy.yaml"
    )
    assert "9408" not in closed.stdout, "without metrics.from nobody may scrape"


def test_every_replica_is_scraped_and_says_on_which_node_it_is() -> None:
    monitor = named("everything", "PodMonitor", "gpushare")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)
    assert [it["targetLabel"] for it in endpoint["relabelings"]] == ["node"]
    selector = monitor["spec"]["selector"]
    (parts,) = selector["matchExpressions"]
    for item in of_kind("everything", "Deployment", "DaemonSet"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert labels["app.kubernetes.io/component"] in parts["values"]


def test_alerts_keep_prometheus_own_templates_and_point_to_where_the_runbooks_are() -> None:
    rules = [
        rule for group in named("everything", "PrometheusRule", "gpushare")["spec"]["groups"] for rule in group["rules"]
    ]
    assert len(rules) > 10
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/gpushare/{rule['alert']}.md"
    (down,) = [rule for rule in rules if rule["alert"] == "GpushareDown"]
    assert down["expr"] == f'up{{job="{NAMESPACE}/gpushare"}} == 0'
    assert "{{ $labels.pod }}" in down["annotations"]["description"]


def test_alerts_link_to_the_charts_home_or_to_nothing() -> None:
    """A relative link leads nowhere from a pager, and a host that nobody owns is worse."""
    shown = "--show-only=templates/metrics/prometheusrule.yaml"
    rule = yaml.safe_load(helm("template", "g", str(CHART), "--set=metrics.prometheusRule.enabled=true", shown).stdout)
    for alert in (alert for group in rule["spec"]["groups"] for alert in group["rules"]):
        assert alert["annotations"].keys() == {"summary", "description"}


def test_an_administrators_labels_annotations_and_variables_are_added_to_those_of_the_chart() -> None:
    values = {"podLabels": {"team": "ml"}, "podAnnotations": {"note": "x"}, "extraEnv": [{"name": "X", "value": "1"}]}
    text = helm(
        "template", "g", str(CHART), *(f"--set-json={part}={json.dumps(values)}" for part in ADJUSTED)
    ).stdout  # fmt: skip
    found = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"]
        for item in yaml.safe_load_all(text)
        if item and item["kind"] in ("Deployment", "DaemonSet")
    }
    assert found.keys() == set(ADJUSTED)
    for part, template in found.items():
        labels = template["metadata"]["labels"]
        assert (labels["team"], labels["app.kubernetes.io/component"]) == ("ml", part)
        assert template["metadata"]["annotations"] == {"note": "x"}
        (container,) = template["spec"]["containers"]
        assert container["env"][-1] == {"name": "X", "value": "1"}


ADJUSTED = ("operator", "webhook", "agent")


def test_the_page_is_off_unless_wanted_and_then_reads_alone() -> None:
    assert "gpushare-ui" not in {item["metadata"]["name"] for item in rendered("default")}
    for rule in named("page", "ClusterRole", "gpushare-ui")["rules"]:
        assert set(rule["verbs"]) <= {"get", "list", "watch"}
        assert not any("/" in resource or resource == "secrets" for resource in rule["resources"]), "nor proxies"
    (container,) = dict(workloads("page"))["gpushare-ui"]["containers"]
    assert [it for it in container["args"] if it.startswith("--host=")] == ["--host=gpus.example.com", "--host=gpus"]


def test_the_page_is_reached_through_the_named_proxy_alone_and_reaches_the_agents() -> None:
    opened = named("page", "NetworkPolicy", "gpushare-ui")["spec"]["ingress"]
    assert opened == [
        {"ports": [{"port": 8083}]},
        {"ports": [{"port": 8090}], "from": [{"namespaceSelector": {"matchLabels": {"team": "ingress"}}}]},
    ]
    own = {"matchLabels": {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "ui"}}
    from_page = {"ports": [{"port": 9408}], "from": [{"podSelector": own}]}
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


def test_the_icon_is_the_file_beside_it() -> None:
    icon = yaml.safe_load((CHART / "Chart.yaml").read_text())["icon"]
    assert (
        base64.b64decode(icon.removeprefix("data:image/svg+xml;base64,")) == (CHART / "icon.svg").read_bytes().strip()
    )


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


@every_variant
def test_definitions_come_with_the_chart_as_they_stand_in_crds(variant: str) -> None:
    golden = {
        (it := yaml.safe_load(path.read_text()))["metadata"]["name"]: it for path in Path(REPOSITORY / "crds").glob("*")
    }
    found = {item["metadata"]["name"]: item for item in of_kind(variant, "CustomResourceDefinition")}
    assert found.keys() == (set() if variant == "least" else golden.keys())
    for name, item in found.items():
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
