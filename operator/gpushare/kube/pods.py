"""Pods as the API shows them: the fields that several parts read. Pure.

Guarantees: a field that the API left out or gave as null counts as empty; only what every pod has (name, namespace,
uid) is required, and KeyError is raised where it is missing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare.api import names

Pod = Mapping[str, Any]
Container = Mapping[str, Any]
"""An item of a pod's `spec.containers`, `spec.initContainers` or `spec.ephemeralContainers`."""
ContainerStatus = Mapping[str, Any]
"""An item of a pod's `status.containerStatuses`, or of those of init or ephemeral containers."""

ENDED_PHASES = ("Succeeded", "Failed")
"""A pod in such a phase has no running container and never will again."""
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod: the uid of the static pod as the kubelet knows it; the mirror has another in the API."""
SCHEDULED = "PodScheduled"
"""Type of a pod's condition."""
DEFAULT_GRACE_SECONDS = 30.0
"""Kubernetes' default of terminationGracePeriodSeconds."""


def full_name(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def controller_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, name) of what made an object and makes it again; empty where nothing does."""
    owners = obj.get("metadata", {}).get("ownerReferences") or ()
    return next(((str(owner["kind"]), str(owner["name"])) for owner in owners if owner.get("controller")), ("", ""))


def phase(pod: Pod) -> str:
    """The pod's phase; empty where the status does not say."""
    return str((pod.get("status") or {}).get("phase") or "")


def has_ended(pod: Pod) -> bool:
    """Whether no container of it runs, nor ever will again."""
    return phase(pod) in ENDED_PHASES


def is_taken_up(pod: Pod) -> bool:
    """Whether its kubelet has seen it: that sets the start time, and then admits the pod or fails it.

    A pod that only names the node is none of the few hundred that a kubelet runs.
    """
    return bool((pod.get("status") or {}).get("startTime"))


def is_bound(pod: Pod) -> bool:
    """Whether a scheduler or its kubelet says that it has a node. A pod may be created with a node's name, too."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == SCHEDULED and item.get("status") == "True" for item in conditions)


def grace_period_seconds(pod: Pod) -> float:
    """The grace period of the spec; what a deletion gave instead is in the metadata."""
    seconds = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_SECONDS if seconds is None else float(seconds)


def priority(pod: Pod) -> int:
    """The priority that its PriorityClass had when the pod was made; 0 where there is none."""
    return int((pod.get("spec") or {}).get("priority") or 0)


def tolerates(pod: Pod, taint: Mapping[str, Any]) -> bool:
    """Whether a toleration of the pod matches the taint, as the scheduler judges."""
    return any(_matches(toleration, taint) for toleration in (pod.get("spec") or {}).get("tolerations") or ())


def _matches(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    exists = toleration.get("operator") == "Exists"
    key, effect = toleration.get("key") or "", toleration.get("effect") or taint.get("effect")
    same = key == taint.get("key") or (exists and not key)
    return same and effect == taint.get("effect") and (exists or _value(toleration) == _value(taint))


def _value(of: Mapping[str, Any]) -> str:
    return str(of.get("value") or "")


def containers(pod: Pod, *, ephemeral: bool = False) -> list[Container]:
    """Containers first, then init containers (sidecars are among them) and, if asked for, ephemeral ones."""
    spec = pod.get("spec") or {}
    fields = ("containers", "initContainers", *(("ephemeralContainers",) if ephemeral else ()))
    return [container for field in fields for container in spec.get(field) or ()]


def container_statuses(pod: Pod) -> list[ContainerStatus]:
    """The statuses of all containers, in the order of `containers`."""
    status = pod.get("status") or {}
    fields = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    return [item for field in fields for item in status.get(field) or ()]


def container_id(status: ContainerStatus) -> str:
    """The runtime's id of the latest instance, without the runtime's name; empty where there is none yet."""
    return str(status.get("containerID") or "").rpartition("://")[2]


def is_running(status: ContainerStatus) -> bool:
    return (status.get("state") or {}).get("running") is not None


def container_name(pod: Pod, of_id: str, otherwise: str = "") -> str:
    """The name of the container that the runtime knows by this id, or `otherwise` where the status does not show it."""
    statuses = container_statuses(pod) if of_id else []
    return next((str(item["name"]) for item in statuses if container_id(item) == of_id), otherwise)


def stop_signals(pod: Pod, name: str) -> set[str]:
    """The signals of which the runtime may send one to end the container, by name; of an unknown one (""), of any.

    The status has the signal in force, the image's included, where cluster and runtime report it (feature gate
    ContainerStopSignals). Where only the spec names one, the runtime may not know of it, and send SIGTERM. Elsewhere
    the image's STOPSIGNAL is not known, and SIGTERM, the default, is assumed.
    """
    reported = {str(item.get("name")): str(item.get("stopSignal") or "") for item in container_statuses(pod)}
    signals = {
        other: {reported[other]} if reported.get(other) else _assumed_signals(container)
        for container in containers(pod, ephemeral=True)
        if (other := str(container.get("name")))
    }
    return signals[name] if name in signals else {"SIGTERM"}.union(*signals.values())


def _assumed_signals(container: Container) -> set[str]:
    return {"SIGTERM", str((container.get("lifecycle") or {}).get("stopSignal") or "SIGTERM")}


def limits(container: Container) -> Mapping[str, Any]:
    """The container's limits above zero, as the API has them: quantities may be strings or numbers."""
    return _asked(container, "limits")


def requested_resources(container: Container) -> list[str]:
    """The names of the resources that it requests or limits, once each; a quantity of zero asks for nothing."""
    return list({**_asked(container, "requests"), **limits(container)})


def _asked(container: Container, field: str) -> dict[str, Any]:
    """The API server writes every zero as 0, whatever its unit was."""
    quantities = (container.get("resources") or {}).get(field) or {}
    return {name: quantity for name, quantity in quantities.items() if str(quantity) != "0"}


def asks_for_gpu(pod: Pod) -> bool:
    """Whether it asks for a slot of a share or has a claim, which may be for a part of one of our GPUs."""
    resources = (resource for container in containers(pod) for resource in limits(container))
    has_claim = bool((pod.get("spec") or {}).get("resourceClaims"))
    return has_claim or any(names.share_of_resource(resource) for resource in resources)


def may_have_clients(pod: Pod) -> bool:
    """Whether it asks for a GPU and has not ended."""
    return asks_for_gpu(pod) and not has_ended(pod)


def environment(container: Container) -> dict[str, str]:
    """The variables that its spec sets by value; those set by a reference are empty."""
    return {variable["name"]: variable.get("value") or "" for variable in container.get("env") or ()}


def mirrored_uid(pod: Pod) -> str:
    """The uid of a mirror pod's static pod, after which the kubelet names the cgroups; empty for any other pod.

    Nobody can turn a pod that exists into a mirror (the API server refuses to change the annotation), and the kubelet
    starts no container for one (the static pod runs).
    """
    metadata = pod["metadata"]
    uid = str((metadata.get("annotations") or {}).get(MIRROR) or "")
    owners = metadata.get("ownerReferences") or ()
    return uid if any(owner.get("kind") == "Node" and owner.get("controller") for owner in owners) else ""


def pods_by_cgroup_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    """The pods by the uid in the names of their cgroups.

    Whoever may create a pod can also create a false mirror, which the kubelet deletes within seconds. Until then it
    hides a static pod whose uid it repeats, which is nobody's then, but no other pod.
    """
    pods = list(pods)
    mirrors = {pod["metadata"]["uid"]: uid for pod in pods if (uid := mirrored_uid(pod))}
    claimed = Counter(mirrors.values())
    static = {uid: pod for pod in pods if (uid := mirrors.get(pod["metadata"]["uid"], "")) and claimed[uid] == 1}
    return static | {pod["metadata"]["uid"]: pod for pod in pods}
