"""What others refuse or change of what gpushare writes is told where users look, with the remedy; and once it is
mended, all is well by itself."""

from typing import Any

from localcluster.kubectl import CommandError, Object, as_list
from localcluster.stack import NAMESPACE
from tests.cluster.changed_pods import change_pods, leave_pods
from tests.cluster.harness import Harness, Share, wait_until
from tests.cluster.tools.test_kubectl import plugin

POLICY = "no-mps-daemonsets"
CHANGE = "no-host-pid"
KINDS = "validatingadmissionpolicy,validatingadmissionpolicybinding"


def _policy() -> list[Object]:
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["daemonsets"]}
    constraints = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "resourceRules": [rule],
    }
    validation = {"expression": "false", "message": "hostPID is not allowed here"}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    return [
        {
            **kind,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {"failurePolicy": "Fail", "matchConstraints": constraints, "validations": [validation]},
        },
        {
            **kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        },
    ]


def _is_refused(harness: Harness) -> bool:
    labels = {"app": "any"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "any", "image": "any"}]}}
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "any"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    try:
        harness.system("create", "--dry-run=server", "-f", "-", stdin=as_list([daemon_set]))
    except CommandError as error:
        return "hostPID is not allowed here" in str(error)
    return False


def daemons_message(share: Share) -> str:
    return str(share.condition("DaemonsReady").get("message", ""))


def refusal(share: Share) -> dict[str, Any]:
    ready = share.condition()
    return ready if ready.get("reason") == "WriteRefused" else {}


def test_a_write_that_a_policy_refuses_is_told_and_done_once_it_may_be(harness: Harness) -> None:
    harness.kubectl.apply(*_policy())
    try:
        wait_until("the policy is in force", lambda: _is_refused(harness), 60)  # the API server takes a moment
        with harness.share("refused", ready=False) as share:
            told = wait_until("the refusal is told", lambda: refusal(share), 60, share.get)
            assert "hostPID is not allowed here" in told["message"]
            assert "leave gpushare's namespace and objects out of that policy" in told["message"]
            assert share.events("WriteRefused")
            check = plugin(harness, "check")
            assert (check.returncode, "hostPID is not allowed here" in check.stdout) == (1, True), check.stdout
            harness.kubectl.delete(KINDS, POLICY)
            share.wait_ready(seconds=90)
            wait_until("no refusal is left", lambda: not share.condition("WritesAccepted"), 30, share.get)
    finally:
        harness.kubectl.delete(KINDS, POLICY)


def test_mps_pods_that_a_policy_changes_are_told_of(harness: Harness) -> None:
    change = """Object{metadata: Object.metadata{annotations: {"changed": "by-a-policy"}},
        spec: Object.spec{hostPID: false}}"""
    change_pods(harness, CHANGE, ["mps"], change, "by-a-policy")
    try:
        with harness.share("changed", ready=False, per_node=1) as share:
            told = "a policy of the cluster has changed its hostPID"
            wait_until("the change is told", lambda: told in daemons_message(share), 60, share.get)
    finally:
        leave_pods(harness, CHANGE)


def test_an_agent_whose_pod_a_policy_changes_says_so_until_it_is_left_alone(harness: Harness) -> None:
    """Without the node's PIDs it would guard nobody, and nothing would say so."""
    change = """Object{metadata: Object.metadata{annotations: {"changed": "by-a-policy"}},
        spec: Object.spec{hostPID: false}}"""
    with harness.share("guarded", per_node=1), harness.namespace() as tenant:
        (name,) = tenant.neighbours("guarded", 1)
        change_pods(harness, CHANGE, ["agent"], change, "by-a-policy")
        try:
            harness.restart_pods("agent")

            def told() -> bool:
                check = plugin(harness, "check")
                return check.returncode == 1 and "has changed its pod's hostPID" in check.stdout

            wait_until("the change is told", told, 60, lambda: plugin(harness, "check").stdout)
            checks = tenant.checks(name)
            wait_until("its client goes on", lambda: tenant.checks(name) > checks)
        finally:
            leave_pods(harness, CHANGE)
            harness.restart_pods("agent")
            harness.wait_component("agent")
