"""Kubernetes Events (events.k8s.io/v1) as plain bodies. Who tells them once per change is `announcer`."""

from datetime import UTC, datetime

from gpushare.kube.client import Object

NOTE_BYTES = 1024
"""Bound of the API on an event's note."""


def reference(obj: Object, api_version: str, kind: str) -> Object:
    """What an event is about. List answers carry no kind, so the caller names it."""
    metadata = obj["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata.get("uid", ""),
    }


def namespace_of(regarding: Object) -> str:
    """Where an event about it belongs: that of its object, or `default` for one of the whole cluster."""
    return regarding.get("namespace") or "default"


def event(
    regarding: Object, *, controller: str, instance: str, kind: str, reason: str, action: str, note: str, name: str
) -> Object:
    """The body of an Event. `kind`: Normal or Warning; `reason` and `action` are CamelCase words."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace_of(regarding)},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": controller,
        "reportingInstance": instance[:128],
        "type": kind,
        "reason": reason,
        "action": action,
        "note": note.encode()[:NOTE_BYTES].decode(errors="ignore"),
        "regarding": {key: value for key, value in regarding.items() if value},
    }
