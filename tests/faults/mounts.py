"""Every part has the node's directory in which points are told, and from which orders come.

The parts that mount /run/gpushare have it anyway. The others get it from the API server as their pods are made, also
those that a roll-out or `helm uninstall` makes: what they told would go with a directory of their own.
"""

from localcluster.kubectl import CommandError, Object, as_list
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness, wait_until

NODE_DIRECTORY = "/run/gpushare/.faults"
NAME = "gpushare-faults"
OTHERS = ("operator", "webhook", "uninstall")
"""Components whose pods mount nothing of the node."""
VOLUME = f"""Object{{spec: Object.spec{{
  volumes: [Object.spec.volumes{{
    name: "faults", hostPath: Object.spec.volumes.hostPath{{path: "{NODE_DIRECTORY}", type: "Directory"}}}}],
  containers: object.spec.containers.map(it, Object.spec.containers{{
    name: it.name,
    volumeMounts: [Object.spec.containers.volumeMounts{{name: "faults", mountPath: "{NODE_DIRECTORY}"}}]}})}}}}"""


def mount_everywhere(harness: Harness) -> None:
    """Before gpushare is installed, whose namespace has to exist."""
    path = harness.in_node(NODE_DIRECTORY)
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o1777)
    harness.kubectl.apply(_policy(), _binding())
    wait_until("pods get the node's directory", lambda: _mounted(harness), 60)


def _policy() -> Object:
    selected = {"key": "app.kubernetes.io/component", "operator": "In", "values": list(OTHERS)}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": NAME},
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
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": VOLUME}}],
        },
    }


def _binding() -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME},
    }


def _mounted(harness: Harness) -> bool:
    """A new policy takes the API server a moment."""
    labels = {"app.kubernetes.io/component": OTHERS[0]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"containers": [{"name": "any", "image": "any"}]},
    }
    try:
        made = harness.system("create", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=as_list([pod]))
    except CommandError:
        return False
    return NODE_DIRECTORY in made
