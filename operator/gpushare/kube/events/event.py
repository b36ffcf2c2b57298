"""Kubernetes Events (events.k8s.io/v1) as values. Pure. `recorder` writes them, each once per change."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gpushare.api.conditions import EventReason, ShareReason
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.resources import Object

NOTE_BYTES = 1024
"""Bound of the API on an event's note."""

Reason = EventReason | ShareReason
EventType = Literal["Normal", "Warning"]
Topic = tuple[str, str, str]
"""(object, reason, subject): events of one topic replace one another."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `regarding`: from `reference`; `type`, `reason`, `action`, `note`: as in events.k8s.io/v1.

    `subject`: the part of the object that it is about, such as a container; empty for the whole of it. `key`: what
    distinguishes it from the last event of its topic; empty: the note does. A note with a figure that moves needs a
    key. `happened`: True for an occurrence, such as a restart, which counts each time; False for a state, which a loop
    records at every turn.
    """

    regarding: Object
    type: EventType
    reason: Reason
    action: str
    note: str
    subject: str = ""
    key: str = ""
    happened: bool = False

    @property
    def topic(self) -> Topic:
        return topic(self.regarding, self.reason, self.subject)

    @property
    def content(self) -> str:
        return self.key or self.note


def topic(regarding: Object, reason: Reason, subject: str) -> Topic:
    about = regarding.get("uid") or f"{regarding['kind']}/{regarding.get('namespace', '')}/{regarding['name']}"
    return about, reason, subject


def reference(obj: Object, api_version: str, kind: str) -> Object:
    """The object that an event is about. The caller names its kind, since items of a list carry none."""
    metadata = obj["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata.get("uid", ""),
    }


def pod_reference(namespace: str, name: str, uid: str) -> Object:
    """The same as `reference`, of a pod whose object is not at hand. `uid`: empty if it is not known."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name} | ({"uid": uid} if uid else {})


def namespace_of(regarding: Object) -> str:
    """The namespace of an event about an object: the object's own, or `default` for a cluster-scoped one."""
    return regarding.get("namespace") or "default"


def event_object(event: Event, *, name: str, controller: str, instance: str, at: datetime) -> Object:
    """The object to create. `controller`, `instance`: who reports it; `at`: when it was observed."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace_of(event.regarding)},
        "eventTime": format_timestamp(at, micro=True),
        "reportingController": controller,
        "reportingInstance": instance[:128],
        "type": event.type,
        "reason": event.reason,
        "action": event.action,
        "note": event.note.encode()[:NOTE_BYTES].decode(errors="ignore"),
        "regarding": {key: value for key, value in event.regarding.items() if value},
    }


def series_patch(count: int, at: datetime) -> Object:
    """The patch that counts an event up: seen `count` times, the last time `at`."""
    return {"series": {"count": count, "lastObservedTime": format_timestamp(at, micro=True)}}
