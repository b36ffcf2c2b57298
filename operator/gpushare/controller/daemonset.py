"""The DaemonSet of a share, which makes one MPS pod on each node with a GPU of the share; and both as read back. Pure.

The DaemonSet depends on nothing of the share but its name: a change of the share's limits must never change a pod
template. And it is replaced OnDelete only, since the end of an MPS pod is the end of its clients; `planner.rollout`
decides when.

It has no token and one host directory; devices and libraries come from the node's agent, through
internal.gpushare.dev/mps. Both containers have SYS_RESOURCE: the broker passes descriptors, as do NVIDIA's daemon and
server beside the supervisor, and without it any pod of the same user can use up what they may pass.

It has no ownerReference: deleting a share in the foreground would end its daemons before their clients.
"""

from datetime import UTC, datetime

from gpushare.api import names
from gpushare.api.gpushare import GpuShare
from gpushare.api.timestamps import parse_timestamp
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import digest, stamped
from gpushare.kube.resources import Object
from gpushare.planner import MpsPod, Template

TMP_SIZE = "64Mi"
SUPERVISOR, BROKER = "mps", "broker"
"""The containers of an MPS pod."""
BROKER_REQUESTS = {"cpu": "100m", "memory": "64Mi"}
BROKER_LIMITS = {"cpu": "500m", "memory": "64Mi"}
"""Tenants reach the broker, so what they can make it spend is limited. An attach costs it a millisecond; the limit is
above the request for the broker's start, which every client waits for."""
MPS_LABELS = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "mps"}
MPS_SELECTOR = ",".join(f"{key}={value}" for key, value in MPS_LABELS.items())
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
PASSES_DESCRIPTORS = ["SYS_RESOURCE"]
BECOMES_ANOTHER_USER = ["SETUID", "SETGID"]
"""Until it has: Kubernetes gives capabilities to root alone. See `users.become_broker`."""


def daemon_set(share: GpuShare, settings: OperatorSettings) -> Object:
    """The apply configuration of `share`'s DaemonSet. Deterministic; quantities as configured."""
    labels = share_labels(share.name)
    rendered: Object = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": names.daemonset_name(share.name, share.metadata.uid),
            "namespace": settings.namespace,
            "labels": labels,
        },
        "spec": {
            "selector": {
                "matchLabels": {key: labels[key] for key in ("app.kubernetes.io/component", names.LABEL_SHARE)}
            },
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "template": _template(share.name, labels, settings),
        },
    }
    return stamped(rendered)


def _template(share: str, labels: Object, settings: OperatorSettings) -> Object:
    """A pod's annotation names the template it was made from, so an outdated pod is recognized without a history."""
    annotations = {names.ANNOTATION_DRIVER_ROOT: settings.driver_root}
    template: Object = {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod(share, settings)}
    annotations[names.ANNOTATION_TEMPLATE] = digest(template)
    return template


def share_labels(share: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "gpushare",
        "app.kubernetes.io/component": "mps",
        "app.kubernetes.io/managed-by": "gpushare-operator",
        names.LABEL_SHARE: share,
    }


def _pod(share: str, settings: OperatorSettings) -> Object:
    pod: Object = {
        "nodeSelector": {names.node_label(share): "true"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        # MPS lists its clients by PID and ends one by PID: in a PID namespace of its own it sees them all as 0.
        "hostPID": True,
        "serviceAccountName": settings.mps_service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.drain_seconds,
        # A multi-user MPS server is for root alone.
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_supervisor(share, settings), _broker(share, settings)],
        "volumes": [
            {"name": "run", "hostPath": {"path": names.RUN_DIR, "type": "DirectoryOrCreate"}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": TMP_SIZE}},
        ],
    }
    if settings.mps_selinux:
        pod["securityContext"]["seLinuxOptions"] = dict(settings.mps_selinux)
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def _supervisor(share: str, settings: OperatorSettings) -> Object:
    """The supervisor starts the daemons of all its GPUs at once, so under a CPU limit each would wait for the others.

    The kernel kills it last without such a limit, too: the kubelet sees to that for pods of system-node-critical.
    """
    requests = {"cpu": settings.mps_cpu, "memory": settings.mps_memory, names.MPS_RESOURCE: "1"}
    limits = {"memory": settings.mps_memory, names.MPS_RESOURCE: "1"}
    if settings.mps_cpu_limit:
        limits["cpu"] = settings.mps_cpu_limit
    command = ["gpushare", "mps-supervisor", "--share", share, "--root", names.RUN_DIR]
    if settings.mps_protocol != "V2":  # the default adds nothing, so an upgrade of the operator replaces no pod for it
        command += ["--mps-protocol", settings.mps_protocol]
    if settings.simulation:
        command.append("--simulation")
    container = _container(SUPERVISOR, command, requests, limits, PASSES_DESCRIPTORS, settings)
    container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108 - a private tmpfs
    return container


def _broker(share: str, settings: OperatorSettings) -> Object:
    """All that client containers reach: a process of a user of its own, without a device."""
    command = ["gpushare", "mps-broker", "--share", share, "--root", names.RUN_DIR]
    capabilities = [*PASSES_DESCRIPTORS, *BECOMES_ANOTHER_USER]
    return _container(BROKER, command, BROKER_REQUESTS, BROKER_LIMITS, capabilities, settings)


def _container(
    name: str,
    command: list[str],
    requests: Object,
    limits: Object,
    capabilities: list[str],
    settings: OperatorSettings,
) -> Object:
    return {
        "name": name,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": capabilities},
        },
        "volumeMounts": [{"name": "run", "mountPath": names.RUN_DIR, "mountPropagation": "None"}],
    }


def template_of(daemon_set: Object) -> Template | None:
    """Returns None for a DaemonSet of a release without the annotation, or for one that is being deleted."""
    metadata = daemon_set["metadata"]
    annotations = daemon_set.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations") or {}
    digest = annotations.get(names.ANNOTATION_TEMPLATE)
    if digest is None or metadata.get("deletionTimestamp"):
        return None
    seen = (daemon_set.get("status") or {}).get("observedGeneration", 0)
    return Template(digest, observed=seen >= metadata.get("generation", 0))


def mps_pod(pod: Object) -> tuple[str, MpsPod] | None:
    """Returns (the DaemonSet's name, the pod), or None where it is on no node yet."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    owner = next((item["name"] for item in metadata.get("ownerReferences") or () if item.get("controller")), "")
    node = spec.get("nodeName") or _intended_node(spec)
    if not node:
        return None
    states = {item.get("name"): item.get("state") or {} for item in status.get("containerStatuses") or ()}
    running = states.get(SUPERVISOR, {}).get("running")
    waits = next((state for state in states.values() if "running" not in state), {})
    trouble, stuck = _trouble(waits, status) if waits or running is None else ("", False)
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
        trouble=trouble or _changed(spec),
        stuck=stuck,
    )


def _intended_node(spec: Object) -> str:
    """The DaemonSet controller names a pod's node in its affinity; the scheduler may bind the pod later, or never."""
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


def _changed(spec: Object) -> str:
    """The first of the fields without which no daemon works that an admission policy has changed; empty: none has."""
    containers = {container.get("name"): container for container in spec.get("containers") or ()}
    supervisor = containers.get(SUPERVISOR, {})
    user = {**(spec.get("securityContext") or {}), **(supervisor.get("securityContext") or {})}.get("runAsUser")
    added = ((supervisor.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()
    paths = {(volume.get("hostPath") or {}).get("path") for volume in spec.get("volumes") or ()}
    kept = {
        "hostPID": bool(spec.get("hostPID")),
        "runAsUser": user == 0,
        "capabilities": set(PASSES_DESCRIPTORS) <= set(added),
        "command": (supervisor.get("command") or ())[:2] == ["gpushare", "mps-supervisor"],
        f"hostPath {names.RUN_DIR}": names.RUN_DIR in paths,
        f"resource {names.MPS_RESOURCE}": names.MPS_RESOURCE
        in ((supervisor.get("resources") or {}).get("limits") or {}),
    }
    lost = next((field for field, holds in kept.items() if not holds), "") if supervisor else ""
    return f"a policy of the cluster has changed its {lost}; leave gpushare's namespace out of it" if lost else ""


def _sentence(reported: Object) -> str:
    return ": ".join(part for part in (reported.get("reason"), reported.get("message")) if part)


def _moment(text: str | None) -> datetime:
    return parse_timestamp(text) if text else datetime.fromtimestamp(0, UTC)
