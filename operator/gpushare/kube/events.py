"""Kubernetes Events, one per change: the caller says when something changed, nothing here repeats itself."""

import logging
import uuid
from datetime import UTC, datetime

import aiohttp

from gpushare.kube.client import EVENTS, Kube, KubeError, Object

LOG = logging.getLogger(__name__)
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


def event(
    regarding: Object, *, controller: str, instance: str, kind: str, reason: str, action: str, note: str
) -> Object:
    """The body of an Event. `kind`: Normal or Warning; `reason` and `action` are CamelCase words."""
    namespace = regarding.get("namespace") or "default"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{regarding['name'][:200]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": controller,
        "reportingInstance": instance[:128],
        "type": kind,
        "reason": reason,
        "action": action,
        "note": note.encode()[:NOTE_BYTES].decode(errors="ignore"),
        "regarding": {key: value for key, value in regarding.items() if value},
    }


async def post(kube: Kube, body: Object) -> None:
    """Best effort: an event that cannot be written is logged, never an error of the work that it tells of."""
    try:
        await kube.create(EVENTS, body, namespace=body["metadata"]["namespace"])
    except (KubeError, aiohttp.ClientError, TimeoutError, OSError) as error:
        LOG.warning("event %s about %s not written: %s", body["reason"], body["regarding"].get("name"), error)
