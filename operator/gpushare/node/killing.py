"""What the kubelet says when it ends a container or a pod by itself. Pure.

A termination that the kubelet decides alone (pressure, node shutdown, activeDeadlineSeconds, a failed probe, a changed
container) shows in no pod's status until no container runs any more (status_manager.go:1473,1504 of Kubernetes 1.37).
But it records an event `Killing` for each container before it runs the preStop hook and sends SIGTERM
(kuberuntime_container.go:887,897,915), and `Evicted` for a pod before that. Events are best effort: of one pod at most
25 at once and then one in five minutes are written (client-go's spam filter).

Anybody who may create events can write one like these, so a policy of ours refuses them to all but nodes; and an event
counts only for the pod that it names fully, in its own namespace.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SELECTOR = "involvedObject.kind=Pod,source=kubelet," + ",".join(
    f"reason!={reason}" for reason in ("Scheduled", "Pulling", "Pulled", "Created", "Started", "BackOff", "Unhealthy")
)
"""A selector cannot say "or", so it leaves out what is frequent; `killing_of` picks from the rest."""
EVICTION_SECONDS = 1.0
"""Grace of an eviction for pressure (eviction_manager.go:62,431); a soft one may have more, which nothing tells."""

_CONTAINER_PATHS = ("spec.containers{", "spec.initContainers{", "spec.ephemeralContainers{")


@dataclass(frozen=True, slots=True)
class Killing:
    """`container` empty: the whole pod, which is evicted. `at`: seconds since 1970 by this node's own clock."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    message: str
    at: float


def killing_of(event: Mapping[str, Any], node: str) -> Killing | None:
    """From an event of core/v1; None: another node's, or about something else.

    KeyError, TypeError, ValueError: it is not as the kubelet writes it.
    """
    source, about = event.get("source") or {}, event.get("involvedObject") or {}
    if (source.get("component"), source.get("host")) != ("kubelet", node) or about.get("kind") != "Pod":
        return None
    container = _container(str(about.get("fieldPath") or ""))
    reason = event.get("reason")
    if not (reason == "Evicted" or (reason == "Killing" and container)):
        return None
    metadata = event["metadata"]
    return Killing(
        pod_uid=str(about.get("uid", "")),
        namespace=metadata["namespace"],
        pod=str(about.get("name", "")),
        container="" if reason == "Evicted" else container,
        message=str(event.get("message") or ""),
        at=datetime.fromisoformat(event.get("lastTimestamp") or event["eventTime"]).timestamp(),
    )


def concerns(killing: Killing, pod: Mapping[str, Any]) -> bool:
    """Whether it is about this very pod: an event's uid is free text, its namespace is not."""
    metadata = pod["metadata"]
    return (metadata["uid"], metadata["namespace"], metadata["name"]) == (
        killing.pod_uid,
        killing.namespace,
        killing.pod,
    )


def grace_seconds(killing: Killing, pod: Mapping[str, Any]) -> float:
    """How long the kubelet waits before it kills, its preStop hook included (kuberuntime_container.go:1423)."""
    if not killing.container:
        return EVICTION_SECONDS
    spec = pod["spec"]
    for probe in ("liveness", "startup"):
        if f"failed {probe} probe" in killing.message:
            own = (_spec_of(spec, killing.container).get(f"{probe}Probe") or {}).get("terminationGracePeriodSeconds")
            if own is not None:
                return float(own)
    grace = spec.get("terminationGracePeriodSeconds")
    return 30.0 if grace is None else float(grace)


def why(killing: Killing) -> str:
    """Completes "its pod …"."""
    told = f" ({killing.message.rstrip('. ')})" if killing.message else ""
    if not killing.container:
        return f"is evicted by the kubelet{told}"
    return f"loses container {killing.container}, which the kubelet ends{told}"


def _container(field_path: str) -> str:
    for prefix in _CONTAINER_PATHS:
        if field_path.startswith(prefix) and field_path.endswith("}"):
            return field_path[len(prefix) : -1]
    return ""


def _spec_of(spec: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    found = (item for kind in ("containers", "initContainers") for item in spec.get(kind) or ())
    return next((item for item in found if item.get("name") == container), {})
