"""MPS pods as the API server shows them."""

from typing import Any

from gpushare.controller.daemonset import MPS_LABELS

CREATED = "2026-01-01T00:00:00Z"
DAEMON_SET = "gpushare-mps-a-uid-a"


def pod(template: str = "t1", *, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "mps-x",
            "namespace": "gpushare-system",
            "uid": "u1",
            "labels": {**MPS_LABELS, "gpushare.dev/share": "a"},
            "annotations": {"gpushare.dev/template": template},
            "creationTimestamp": CREATED,
            "ownerReferences": [{"kind": "DaemonSet", "name": DAEMON_SET, "controller": True}],
        },
        "spec": {"nodeName": "n1"} | spec,
        "status": status or {},
    }


def container(**state: Any) -> dict[str, Any]:
    """The status of a pod whose supervisor is in that state, and whose broker runs longer than any supervisor."""
    broker = {"running": {"startedAt": CREATED}}
    return {"containerStatuses": [{"name": "broker", "state": broker}, {"name": "mps", "state": state}]}


def broken_broker(**state: Any) -> dict[str, Any]:
    """The status of a pod whose supervisor runs, and whose broker is in that state."""
    supervisor = {"running": {"startedAt": CREATED}}
    return {"containerStatuses": [{"name": "broker", "state": state}, {"name": "mps", "state": supervisor}]}
