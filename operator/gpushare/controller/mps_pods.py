"""Pods and DaemonSets of MPS daemons as the API server shows them, read into what the fleet decides on. Pure."""

from datetime import UTC, datetime

from gpushare.api import names
from gpushare.api.timestamps import parse_timestamp
from gpushare.fleet import MpsPod, Template
from gpushare.kube.client import Object

MPS_LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "mps"}
STUCK = (
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
"""Reasons of the kubelet that a pod shows only after it has tried."""


def template_of(daemon_set: Object) -> Template | None:
    """None for a DaemonSet of a release that did not tell its pods what they were made from, or that is going."""
    metadata = daemon_set["metadata"]
    annotations = daemon_set.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations") or {}
    digest = annotations.get(names.ANNOTATION_TEMPLATE)
    if digest is None or metadata.get("deletionTimestamp"):
        return None
    seen = (daemon_set.get("status") or {}).get("observedGeneration", 0)
    return Template(digest, observed=seen >= metadata.get("generation", 0))


def mps_pod(pod: Object) -> tuple[str, MpsPod | None]:
    """(its DaemonSet's name, the pod); no pod where it is on no node yet."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    owner = next((item["name"] for item in metadata.get("ownerReferences") or () if item.get("controller")), "")
    node = spec.get("nodeName") or _wanted_node(spec)
    if not node:
        return owner, None
    state = next((item.get("state") or {} for item in status.get("containerStatuses") or ()), {})
    running = state.get("running")
    trouble, stuck = ("", False) if running is not None else _trouble(state, status)
    began = running.get("startedAt") if running else None
    return owner, MpsPod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        share=(metadata.get("labels") or {}).get(f"{names.GROUP}/share", ""),
        node=node,
        template=(metadata.get("annotations") or {}).get(names.ANNOTATION_TEMPLATE, ""),
        since=_moment(began or metadata.get("creationTimestamp")),
        deleting=bool(metadata.get("deletionTimestamp")),
        running=running is not None,
        trouble=trouble,
        stuck=stuck,
    )


def _wanted_node(spec: Object) -> str:
    """The DaemonSet controller names a pod's node in its affinity; the scheduler binds it later, or cannot."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _trouble(state: Object, status: Object) -> tuple[str, bool]:
    waiting = state.get("waiting") or state.get("terminated") or {}
    if waiting.get("reason") in STUCK:
        return _sentence(waiting), True
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _sentence(condition), False
    return _sentence(waiting), False


def _sentence(told: Object) -> str:
    return ": ".join(part for part in (told.get("reason"), told.get("message")) if part)


def _moment(text: str | None) -> datetime:
    return parse_timestamp(text) if text else datetime.fromtimestamp(0, UTC)
