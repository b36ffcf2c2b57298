"""What a part of ours could do if it were taken over: each policy is tested by trying what it forbids."""

import json
from copy import deepcopy
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Kubectl, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import NODE, Harness


def as_part(harness: Harness, part: str, node: str | None = None) -> Kubectl:
    user = f"--as=system:serviceaccount:{NAMESPACE}:gpushare-{part}"
    groups = ["--as-group=system:serviceaccounts", "--as-group=system:authenticated"]
    extra = [f"--as-user-extra=authentication.kubernetes.io/node-name={node}"] if node else []
    return harness.kubectl.acting_as(user, *groups, *extra)


def refusal(kubectl: Kubectl, *arguments: str, stdin: str | None = None) -> str:
    with pytest.raises(CommandError) as refused:
        kubectl(*arguments, stdin=stdin)
    return refused.value.text


def test_an_agent_writes_the_gpunode_of_its_own_node_alone(harness: Harness) -> None:
    patch = json.dumps({"status": {"agentVersion": "taken-over"}})
    arguments = ("patch", "gpunode", NODE, "--subresource=status", "--type=merge", "-p", patch, "--dry-run=server")
    assert "patched" in as_part(harness, "agent", NODE)(*arguments)
    assert "may write GpuNode" in refusal(as_part(harness, "agent", "node2"), *arguments)
    assert "may write GpuNode" in refusal(as_part(harness, "agent"), *arguments)


def test_an_agent_does_not_assign_gpus_to_itself(harness: Harness) -> None:
    patch = json.dumps({"spec": {"assignments": [{"uuid": "GPU-1", "share": "mine"}]}})
    message = refusal(as_part(harness, "agent", NODE), "patch", "gpunode", NODE, "--type=merge", "-p", patch)
    assert "operator's to write" in message


@pytest.fixture(scope="module")
def daemon_set(harness: Harness) -> Any:
    """The DaemonSet that the operator made for a share, as a template for worse ones."""
    with harness.share("pinned", per_node=1):
        made = harness.system.get("daemonset", "gpushare-mps-pinned")
        metadata = {"name": "gpushare-mps-forged", "namespace": NAMESPACE}
        yield {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": made["spec"]}


def privileged(pod: Object) -> None:
    pod["containers"][0]["securityContext"] = {"privileged": True}


def capability(pod: Object) -> None:
    pod["containers"][0]["securityContext"]["capabilities"] = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


def foreign_image(pod: Object) -> None:
    pod["containers"][0]["image"] = "evil:1"


def other_command(pod: Object) -> None:
    pod["containers"][0]["command"] = ["sh", "-c", "id"]


def whole_host(pod: Object) -> None:
    pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}})


def token(pod: Object) -> None:
    pod["automountServiceAccountToken"] = True


def host_network(pod: Object) -> None:
    pod["hostNetwork"] = True


def variable(pod: Object) -> None:
    pod["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "/run/gpushare/x.so"}]


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        (privileged, "privileged"),
        (capability, "capabilities"),
        (foreign_image, "evil:1"),
        (other_command, "mps-supervisor"),
        (whole_host, "/run/gpushare"),
        (token, "token"),
        (host_network, "network"),
        (variable, "environment"),
    ],
)
def test_the_operator_cannot_run_more_than_an_mps_pod(
    harness: Harness, daemon_set: Object, worse: Any, words: str
) -> None:
    operator = as_part(harness, "operator")
    assert "created" in operator("create", "--dry-run=server", "-f", "-", stdin=json.dumps(daemon_set))
    forged = deepcopy(daemon_set)
    worse(forged["spec"]["template"]["spec"])
    assert words in refusal(operator, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(forged))


def test_the_operator_neither_renames_its_daemonsets_nor_leaves_its_namespace(
    harness: Harness, daemon_set: Object
) -> None:
    forged = daemon_set | {"metadata": {"name": "kube-proxy", "namespace": NAMESPACE}}
    operator = as_part(harness, "operator")
    assert "gpushare-mps-" in refusal(operator, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(forged))
    forged = daemon_set | {"metadata": {"name": "gpushare-mps-x", "namespace": "kube-system"}}
    refusal(operator, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(forged))
    assert "gpushare-mps-" in refusal(operator, "delete", "daemonset", "gpushare-agent", "--namespace", NAMESPACE)


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"pool": "mine"}}},
        {"metadata": {"labels": {"pool": None}}},
        {"metadata": {"annotations": {"x": "y"}}},
        {"spec": {"unschedulable": True}},
    ],
    ids=["label", "label-removed", "annotation", "cordon"],
)
def test_the_operator_changes_nothing_of_a_node_but_its_own_labels(harness: Harness, patch: Object) -> None:
    operator = as_part(harness, "operator")
    own = json.dumps({"metadata": {"labels": {"share.gpushare.dev/x": "true"}}})
    assert "patched" in operator("patch", "node", NODE, "--type=merge", "-p", own, "--dry-run=server")
    message = refusal(operator, "patch", "node", NODE, "--type=merge", "-p", json.dumps(patch))
    assert "share.gpushare.dev" in message


def test_nobody_outside_our_namespace_gets_the_internal_resource(harness: Harness) -> None:
    with harness.namespace() as tenant:
        pod = tenant.pod("greedy", "x", "limits")
        pod["spec"]["containers"][0]["resources"] = {"limits": {"internal.gpushare.dev/mps": "1"}}
        assert "internal.gpushare.dev" in refusal(tenant.kubectl, "create", "-f", "-", stdin=json.dumps(pod))


@pytest.mark.parametrize(
    ("part", "verb", "what"),
    [
        ("operator", "create", "pods"),
        ("operator", "get", "secrets"),
        ("operator", "update", "gpunodes/status"),
        ("agent", "delete", "pods"),
        ("agent", "patch", "nodes"),
        ("agent", "get", "secrets"),
        ("agent", "update", "gpushares"),
        ("webhook", "update", "gpushares"),
        ("webhook", "list", "pods"),
        ("mps", "get", "pods"),
        ("simulated-driver", "get", "pods"),
    ],
)
def test_a_part_has_no_right_that_it_does_not_need(harness: Harness, part: str, verb: str, what: str) -> None:
    resource, _, subresource = what.partition("/")
    extra = [f"--subresource={subresource}"] if subresource else []
    with pytest.raises(CommandError) as denied:
        as_part(harness, part)("auth", "can-i", verb, resource, *extra, "--all-namespaces")
    assert "no" in denied.value.text
