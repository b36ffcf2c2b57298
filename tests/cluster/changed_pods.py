"""The API server changes gpushare's own pods as they are made, also those that a roll-out makes."""

from collections.abc import Sequence

from localcluster.kubectl import CommandError, Object, as_list
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness, wait_until

KINDS = "mutatingadmissionpolicies,mutatingadmissionpolicybindings"


def change_pods(harness: Harness, name: str, components: Sequence[str], expression: str, seen: str) -> None:
    """Returns once new pods of these components are changed. The namespace has to exist.

    `name`: of the policy. `expression`: CEL, an apply configuration. `seen`: what a changed pod has in it.
    """
    harness.kubectl.apply(_policy(name, components, expression), _binding(name))
    wait_until("new pods are changed", lambda: seen in _made(harness, name, components[0]), 60)


def leave_pods(harness: Harness, name: str) -> None:
    """Pods that are there stay as they are."""
    harness.kubectl.delete(KINDS, name)


def _policy(name: str, components: Sequence[str], expression: str) -> Object:
    selected = {"key": "app.kubernetes.io/component", "operator": "In", "values": list(components)}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "objectSelector": {"matchExpressions": [selected]},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    }


def _binding(name: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }


def _made(harness: Harness, name: str, component: str) -> str:
    """A pod as it would be made. A new policy takes the API server a moment."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "spec": {"containers": [{"name": "any", "image": "any"}]},
    }
    try:
        return harness.system("create", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=as_list([pod]))
    except CommandError:
        return ""
