"""What others refuse or change of what gpushare writes is told where users look, with the remedy; and once it is
mended, all is well by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localcluster.kubectl import CommandError, Object, as_list
from localcluster.stack import NAMESPACE
from tests.cluster.changed_pods import change_pods, leave_pods
from tests.cluster.harness import NODE, Harness, Share, condition, wait_until
from tests.cluster.tools.test_kubectl import plugin

POLICY = "no-such-objects"
CHANGE = "no-host-pid"
SAID = "it is not allowed here"
KINDS = "validatingadmissionpolicy,validatingadmissionpolicybinding"


LABELS = {"app": "any"}
OBJECTS: dict[str, Object] = {
    "daemonsets": {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "any"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [{"name": "any", "image": "any"}]},
            },
        },
    },
    "resourceslices": {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "any"},
        "spec": {
            "driver": "example.com",
            "nodeName": NODE,
            "pool": {"name": "any", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "any"}],
        },
    },
}
"""An object of each kind that a policy here refuses, to see whether it does by now."""


def _policy(resource: str) -> list[Object]:
    group, _, version = str(OBJECTS[resource]["apiVersion"]).partition("/")
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": [resource]}
    constraints = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},  # what has one
        "resourceRules": [rule],
    }
    validation = {"expression": "false", "message": SAID}
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


def _is_refused(harness: Harness, resource: str) -> bool:
    try:
        harness.system("create", "--dry-run=server", "-f", "-", stdin=as_list([OBJECTS[resource]]))
    except CommandError as error:
        return SAID in str(error)
    return False


@contextmanager
def refusing(harness: Harness, resource: str) -> Iterator[None]:
    harness.kubectl.apply(*_policy(resource))
    try:
        # The API server takes a moment.
        wait_until("the policy is in force", lambda: _is_refused(harness, resource), 60)
        yield
    finally:
        harness.kubectl.delete(KINDS, POLICY)


def check_fails(harness: Harness, words: str) -> bool:
    check = plugin(harness, "check")
    return check.returncode == 1 and words in check.stdout


def daemons_message(share: Share) -> str:
    return str(share.condition("DaemonsReady").get("message", ""))


def refusal(share: Share) -> dict[str, Any]:
    ready = share.condition()
    return ready if ready.get("reason") == "WriteRefused" else {}


def test_a_write_that_a_policy_refuses_is_told_and_done_once_it_may_be(harness: Harness) -> None:
    with refusing(harness, "daemonsets"), harness.share("refused", ready=False) as share:
        told = wait_until("the refusal is told", lambda: refusal(share), 60, share.get)
        assert SAID in told["message"]
        assert "leave gpushare's namespace and objects out of that policy" in told["message"]
        assert share.events("WriteRefused")
        assert check_fails(harness, SAID)
        harness.kubectl.delete(KINDS, POLICY)
        share.wait_ready(seconds=90)
        wait_until("no refusal is left", lambda: not share.condition("WritesAccepted"), 30, share.get)


def test_a_nodes_slice_that_a_policy_refuses_is_told_until_it_is_taken(harness: Harness) -> None:
    def told() -> dict[str, Any]:
        return condition(harness.gpu_node(), "WritesAccepted")

    with refusing(harness, "resourceslices"), harness.share("unsliced", per_node=1, delivery="ResourceClaim"):
        wait_until("the refusal is told", lambda: told().get("reason") == "WriteRefused", 60, harness.gpu_node)
        assert told()["status"] == "False"
        assert SAID in told()["message"]
        assert check_fails(harness, SAID)
        harness.kubectl.delete(KINDS, POLICY)
        wait_until("it is taken", lambda: told()["status"] == "True", 60, harness.gpu_node)


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


def test_an_agent_whose_pod_a_policy_changes_says_so(harness: Harness) -> None:
    """Without the node's PIDs it would guard nobody, and nothing would say so."""
    change = """Object{metadata: Object.metadata{annotations: {"changed": "by-a-policy"}},
        spec: Object.spec{hostPID: false}}"""
    with harness.share("guarded", per_node=1), harness.namespace() as tenant:
        (name,) = tenant.neighbours("guarded", 1)
        change_pods(harness, CHANGE, ["agent"], change, "by-a-policy")
        try:
            harness.restart_pods("agent")

            words = "has changed its pod's hostPID"
            wait_until("the change is told", lambda: check_fails(harness, words), 60,
                       lambda: plugin(harness, "check").stdout)  # fmt: skip
            checks = tenant.checks(name)
            wait_until("its client goes on", lambda: tenant.checks(name) > checks)
        finally:
            leave_pods(harness, CHANGE)
            harness.restart_pods("agent")
            harness.wait_component("agent")
