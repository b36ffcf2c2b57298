"""What the chart makes for nodes' images that confine containers: SELinux options, and OpenShift's constraints."""

import json
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.controller.daemonset import daemon_set
from gpushare.controller.settings import OperatorSettings
from tests.unit.chart.rendered import (
    CHART,
    NAMESPACE,
    VARIANTS,
    documents,
    every_variant,
    helm,
    needs_helm,
    of_kind,
    workloads,
)

pytestmark = needs_helm
Object = dict[str, Any]
CLIENTS = {"perGpu": 2, "memory": {"default": "4Gi"}}
SHARE = GpuShare.model_validate({"metadata": {"name": "a", "uid": "u"}, "spec": {"clients": CLIENTS}})
RESTRICTED = {"type": "RuntimeDefault"}


def constraints(variant: str, *extra: str) -> dict[str, Object]:
    """The constraints by the name of the ServiceAccount that each is for."""
    sets = [f"--set={value}" for value in (*VARIANTS[variant], *extra)]
    text = helm("template", "g", str(CHART), "--namespace", NAMESPACE, *sets).stdout
    by_account = {}
    for item in documents(text):
        if item["kind"] == "SecurityContextConstraints":
            assert item["groups"] == []
            for user in item["users"]:
                by_account[user.removeprefix(f"system:serviceaccount:{NAMESPACE}:")] = item
    return by_account


def refusals(scc: Object, pod: Object) -> list[str]:
    """What OpenShift would refuse of the pod under the constraint, as far as our pods use such fields."""
    refused = []
    root = pod["securityContext"]
    for field, allowed in (("hostPID", "PID"), ("hostIPC", "IPC"), ("hostNetwork", "Network")):
        if pod.get(field) and not scc[f"allowHost{allowed}"]:
            refused.append(field)
    for volume in pod.get("volumes", ()):
        (kind,) = volume.keys() - {"name"}
        if kind not in scc["volumes"]:
            refused.append(kind)
    if pod["automountServiceAccountToken"] and "projected" not in scc["volumes"]:
        refused.append("token")
    if root["seccompProfile"] != RESTRICTED or scc["seccompProfiles"] != ["runtime/default"]:
        refused.append("seccomp")
    if scc["supplementalGroups"]["type"] == "MustRunAs" and root.get("supplementalGroups") != [65534]:
        refused.append("supplementalGroups")
    for container in pod["containers"]:
        own = {**root, **container["securityContext"]}
        if own.get("privileged") and not scc["allowPrivilegedContainer"]:
            refused.append("privileged")
        if own.get("allowPrivilegeEscalation", True) and not scc["allowPrivilegeEscalation"]:
            refused.append("escalation")
        if set(own.get("capabilities", {}).get("add", ())) - set(scc["allowedCapabilities"]):
            refused.append("capabilities")
        if set(scc["requiredDropCapabilities"]) - set(own.get("capabilities", {}).get("drop", ())):
            refused.append("drop")
        if scc["readOnlyRootFilesystem"] and not own["readOnlyRootFilesystem"]:
            refused.append("root file system")
        if scc["runAsUser"]["type"] == "MustRunAs" and own["runAsUser"] != scc["runAsUser"]["uid"]:
            refused.append("user")
    return refused


@pytest.mark.parametrize("extra", [(), ("agent.gpuAccess=RuntimeClass",), ("simulation.enabled=true",)])
def test_openshift_admits_node_pods_by_their_own_constraint(
    extra: tuple[str, ...],
) -> None:
    by_account = constraints("openshift", *extra)
    sets = [f"--set={value}" for value in (*VARIANTS["openshift"], *extra)]
    text = helm("template", "g", str(CHART), "--namespace", NAMESPACE, *sets).stdout
    pods = {
        item["spec"]["template"]["spec"]["serviceAccountName"]: item["spec"]["template"]["spec"]
        for item in documents(text)
        if item["kind"] == "DaemonSet"
    }
    pods["gpushare-mps"] = daemon_set(SHARE, OperatorSettings(NAMESPACE, "p", "i"))["spec"]["template"]["spec"]
    assert by_account.keys() == pods.keys()
    for account, pod in pods.items():
        assert refusals(by_account[account], pod) == [], account
    assert refusals(by_account["gpushare-mps"], pods["gpushare-agent"])


def test_a_constraint_allows_no_more_than_its_pods_ask_for() -> None:
    privileged = constraints("openshift")
    assert privileged["gpushare-agent"]["allowPrivilegedContainer"] is True
    assert privileged["gpushare-mps"]["allowPrivilegedContainer"] is False
    lean = constraints("openshift", "agent.gpuAccess=RuntimeClass", "computeMode=Leave")["gpushare-agent"]
    assert (lean["allowPrivilegedContainer"], lean["allowedCapabilities"]) == (False, ["KILL"])
    for item in (*privileged.values(), lean):
        assert not any(item[f"allowHost{name}"] for name in ("IPC", "Network", "Ports"))


@every_variant
def test_user_ids_are_the_namespaces_where_openshift_gives_them(variant: str) -> None:
    for name, pod in workloads(variant):
        if name in ("gpushare-operator", "gpushare-webhook", "gpushare-ui"):
            security = pod["securityContext"]
            assert security["runAsNonRoot"] is True
            assert ("runAsUser" in security) is (variant != "openshift"), name
    assert bool(of_kind(variant, "SecurityContextConstraints")) is (variant == "openshift")


@every_variant
def test_selinux_options_are_given_only_where_they_were_asked_for(variant: str) -> None:
    pods = dict(workloads(variant))
    (operator,) = pods["gpushare-operator"]["containers"]
    text = {variable["name"]: variable.get("value") for variable in operator["env"]}.get("GPUSHARE_MPS_SELINUX_OPTIONS")
    asked = variant == "labelled"
    assert (text and json.loads(text)) == ({"type": "spc_t", "level": "s0"} if asked else None)
    expected = {"type": "spc_t"} if asked else None
    assert pods["gpushare-agent"]["securityContext"].get("seLinuxOptions") == expected


@every_variant
def test_mps_pods_may_have_the_charts_selinux_options_alone(variant: str) -> None:
    if variant == "least":
        return
    policy = next(
        policy for policy in of_kind(variant, "ValidatingAdmissionPolicy")
        if policy["metadata"]["name"] == "gpushare-operator-daemonsets"
    )  # fmt: skip
    (rule,) = [
        validation["expression"]
        for validation in policy["spec"]["validations"]
        if "seLinuxOptions" in validation["expression"]
    ]
    expected = {"type": "spc_t", "level": "s0"} if variant == "labelled" else {}
    for key in ("user", "role", "type", "level"):
        assert f".?seLinuxOptions.?{key}.orValue('') == '{expected.get(key, '')}'" in rule
