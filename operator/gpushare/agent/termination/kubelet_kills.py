"""What the kubelet says when it ends a container or a pod by itself. Pure.

A termination that the kubelet decides alone shows in no pod's status until no container runs any more
(status_manager.go:1473,1504 of Kubernetes 1.37). But it records an event `Killing` for each container before it runs
the preStop hook and sends SIGTERM (kuberuntime_container.go:887,897,915), whose message tells a failed probe or hook, a
changed definition or a resize. Why it ends a pod as a whole it tells before that, where it tells it: see PODS. Nothing
tells it on a pod when the node shuts down (nodeshutdown_manager.go:159) or a pod's sandbox is made anew.

Events are best effort: of one pod at most 25 at once and then one in five minutes are written (client-go's spam
filter).

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
"""Grace of an eviction for pressure (eviction_manager.go:62,431), and of a pod that is not taken back. A soft eviction
may leave more, which nothing tells."""

PODS: Mapping[str, str] = {
    "Evicted": "is evicted by the kubelet",  # eviction_manager.go:643
    "Preempting": "has to make room for a critical pod, as the kubelet decided",  # preemption.go:112
    "DeadlineExceeded": "has been active for longer than its activeDeadlineSeconds",  # active_deadline.go:74
}
"""The reasons with which the kubelet ends a pod as a whole; each completes "its pod …"."""
REJECTIONS = ("NodeAffinity", "TopologyAffinityError", "UnexpectedAdmissionError")
LACK = "OutOf"
"""A restarted kubelet admits the pods of its node anew. One that does not fit any more fails, and what still runs of it
is killed within two seconds (kubelet.go:2924, kubelet_pods.go:1429). A reason that begins with LACK names a resource:
that of the slots too, where it is the labels of the node that do not fit (predicate.go:268). For a node's conditions
the reason is Evicted."""
RESTARTED_WITH_ALL = "killing"
"""What it says of a container that it restarts because another one's restart rule wants all of them restarted
(kuberuntime_manager.go:1642): without any grace, and without its preStop hook."""

_CONTAINER_PATHS = ("spec.containers{", "spec.initContainers{", "spec.ephemeralContainers{")


@dataclass(frozen=True, slots=True)
class KubeletKill:
    """`reason`: the event's. `container` empty: the whole pod. `at`: seconds since 1970 by this node's own clock."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    reason: str
    message: str
    at: float

    @property
    def shortens(self) -> bool:
        """Whether it takes the rest of its time from a pod that is being deleted (pod_workers.go:1023)."""
        return self.reason == "Evicted" or self.rejects

    @property
    def rejects(self) -> bool:
        return _rejects(self.reason)


def kubelet_kill(event: Mapping[str, Any], node: str) -> KubeletKill | None:
    """From an event of core/v1; None: another node's, or about something else.

    KeyError, TypeError, ValueError: it is not as the kubelet writes it.
    """
    source, about = event.get("source") or {}, event.get("involvedObject") or {}
    if (source.get("component"), source.get("host")) != ("kubelet", node) or about.get("kind") != "Pod":
        return None
    reason = str(event.get("reason"))
    whole = reason in PODS or _rejects(reason)
    container = "" if whole else _container(str(about.get("fieldPath") or ""))
    if not (whole or (reason == "Killing" and container)):
        return None
    metadata = event["metadata"]
    return KubeletKill(
        pod_uid=str(about.get("uid", "")),
        namespace=metadata["namespace"],
        pod=str(about.get("name", "")),
        container=container,
        reason=reason,
        message=str(event.get("message") or ""),
        at=datetime.fromisoformat(event.get("lastTimestamp") or event["eventTime"]).timestamp(),
    )


def concerns(killing: KubeletKill, pod: Mapping[str, Any]) -> bool:
    """Whether it is about this very pod: an event's uid is free text, its namespace is not.

    A pod that never ran and is not taken has nothing to lose.
    """
    metadata = pod["metadata"]
    if killing.rejects and pod.get("status", {}).get("phase") != "Running":
        return False
    return (metadata["uid"], metadata["namespace"], metadata["name"]) == (
        killing.pod_uid,
        killing.namespace,
        killing.pod,
    )


def grace_seconds(killing: KubeletKill, pod: Mapping[str, Any]) -> float:
    """How long the kubelet waits before it kills, its preStop hook included (kuberuntime_container.go:1423)."""
    if killing.shortens:
        return EVICTION_SECONDS
    if killing.message == RESTARTED_WITH_ALL:
        return 0.0
    spec = pod["spec"]
    for probe in ("liveness", "startup"):
        if f"failed {probe} probe" in killing.message:
            own = (_spec_of(spec, killing.container).get(f"{probe}Probe") or {}).get("terminationGracePeriodSeconds")
            if own is not None:
                return float(own)
    grace = spec.get("terminationGracePeriodSeconds")
    return 30.0 if grace is None else float(grace)


def why(killing: KubeletKill) -> str:
    """Completes "its pod …"."""
    told = f" ({killing.message.rstrip('. ')})" if killing.message else ""
    if killing.rejects:
        return f"was not taken back by its kubelet, which had restarted{told}"
    if not killing.container:
        return f"{PODS[killing.reason]}{told}"
    if killing.message == RESTARTED_WITH_ALL:
        return f"loses container {killing.container}, which the kubelet restarts together with all others of the pod"
    return f"loses container {killing.container}, which the kubelet ends{told}"


def _rejects(reason: str) -> bool:
    return reason in REJECTIONS or reason.startswith(LACK)


def _container(field_path: str) -> str:
    for prefix in _CONTAINER_PATHS:
        if field_path.startswith(prefix) and field_path.endswith("}"):
            return field_path[len(prefix) : -1]
    return ""


def _spec_of(spec: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    found = (item for kind in ("containers", "initContainers") for item in spec.get(kind) or ())
    return next((item for item in found if item.get("name") == container), {})
