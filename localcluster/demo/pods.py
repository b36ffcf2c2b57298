"""The demo's pods, as a user would write them: the slot is their only request for a GPU, and they pass `restricted`."""

from typing import Any

NAMESPACE = "gpushare-demo"
CLIENTS = 8
VICTIM = "client-1"
KERNEL_MS = 1000
GRACE_SECONDS = 5

Object = dict[str, Any]


def client_pod(name: str, image: str, share: str, arguments: list[str], annotations: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations, "labels": {"demo": "client"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "app",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["run", *arguments],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "resources": {"limits": {f"gpushare.dev/{share}": "1", "memory": "256Mi"}},
                }
            ],
        },
    }


def demo_pods(image: str, share: str) -> list[Object]:
    """One victim with long kernels, seven neighbours that check results; two of them ask for less or more."""
    asked = {2: {"gpushare.dev/threads": "10"}, 3: {"gpushare.dev/threads": "50", "gpushare.dev/memory": "8Gi"}}
    pods = []
    for number in range(1, CLIENTS + 1):
        name = f"client-{number}"
        role = ["--role", "victim", "--kernel-ms", str(KERNEL_MS)] if name == VICTIM else ["--role", "neighbour"]
        pods.append(client_pod(name, image, share, ["depart", *role], asked.get(number, {})))
    return pods
