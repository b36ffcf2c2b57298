"""What NVML shows of a shared GPU, told by container: who uses how much, and what was granted. Pure.

A claim's grant is the one that it was prepared with. A slot's is read from the container's environment in the pod's
spec, which nobody can change once the pod is there, and counts only where the container asks for a slot of the GPU's
share: an environment alone grants nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpushare.agent.kubelet.holdings import ContainerName
from gpushare.agent.process.processes import Owner
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import grant_from_environment
from gpushare.grant.model import Grant, default_grant

_STATIC_POD_HASH = "kubernetes.io/config.hash"
"""The uid of a static pod as the kubelet knows it; the uid of its mirror in the API is another one."""
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")

ClaimedGpu = Mapping[ContainerName, Grant]
"""What the prepared claims of containers grant."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A process that NVML lists. `owners`: its pods by its cgroup, the outermost first; none: a process of the host."""

    pid: int
    started: int
    """Clock ticks since boot: tells the process from a later one of its PID."""
    memory_mib: int
    mps: bool
    owners: tuple[Owner, ...] = ()
    ended: bool = False
    """Its contexts were ended through the daemon: it computes no more, but is listed with its memory until it exits."""
    bare: bool = False
    """It sees no mount of ours, so it cannot reach MPS. Looked at only where it is no MPS client."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one container uses of a GPU, through MPS or past it; or one process, where no container is known.

    `pod_uid` is empty for a process of the host; `pod` alone where the API does not know (any more) what the cgroup
    names; `container` alone where its pod's status does not tell which of them it is.
    """

    uuid: Uuid
    share: ShareName
    pod_uid: str
    namespace: str
    pod: str
    container: str
    container_id: str
    listed: tuple[Listed, ...]
    slot: bool
    """The container asks for a slot of this share, or has a claim of it."""
    grant: Grant | None
    """None: no slot, or a share that is not known any more."""
    by_default: bool
    """The share's default of today stands in, since the pod carries no grant: it never passed the webhook."""
    taken_at: float
    """CLOCK_BOOTTIME seconds, from before NVML was asked."""

    @property
    def mps(self) -> bool:
        return all(process.mps for process in self.listed)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.listed)

    @property
    def processes(self) -> int:
        return len(self.listed)

    @property
    def memory_mib(self) -> int:
        """The sum over the processes, their contexts included."""
        return sum(process.memory_mib for process in self.listed)


@dataclass(frozen=True, slots=True)
class Reading:
    """Everybody on one GPU but our own servers, at one moment."""

    uuid: Uuid
    share: ShareName
    taken_at: float
    gpu_memory_mib: int
    """Of the whole GPU."""
    usages: tuple[Usage, ...]
    without_mounts: tuple[Usage, ...] = ()
    """Containers with a slot that cannot reach the GPU's daemon, and that NVML does not list: see `mounts`."""


def pods_by_cgroup_uid(pods: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By the uid that the kubelet names their cgroups after."""
    return {_cgroup_uid(pod["metadata"]): pod for pod in pods}


def reading(
    uuid: Uuid,
    share: ShareName,
    taken_at: float,
    gpu_memory_mib: int,
    listed: Iterable[Listed],
    pods: Mapping[str, Mapping[str, Any]],
    model: GpuShare | None,
    bare: Iterable[Listed] = (),
    claimed: ClaimedGpu = MappingProxyType({}),
) -> Reading:
    """`pods`: of `pods_by_cgroup_uid`. `model`: the share as it is today, where it is known. `bare`: a process of each
    container that has a part of the GPU and was started without the mounts that go with it. `claimed`: what the claims
    of containers grant.
    """
    grants = _by_pod(claimed, share)
    groups: dict[tuple[object, ...], tuple[Owner | None, list[Listed]]] = {}
    for process in listed:
        owner = _owner(process.owners, pods)
        whose = (process.pid,) if owner is None else (owner.pod_uid, owner.container_id)
        groups.setdefault((process.mps, *whose), (owner, []))[1].append(process)
    usages = [
        _usage(uuid, share, taken_at, owner, tuple(sorted(group, key=lambda process: process.pid)), pods, model, grants)
        for owner, group in groups.values()
        if not _is_our_own(owner, pods)
    ]
    seen = {usage.container_id for usage in usages}
    stranded = [
        _usage(uuid, share, taken_at, owner, (process,), pods, model, grants)
        for process in bare
        if (owner := _owner(process.owners, pods)) is not None and owner.container_id not in seen
    ]
    return Reading(
        uuid, share, taken_at, gpu_memory_mib, _in_order(usages), _in_order(usage for usage in stranded if usage.slot)
    )


def _in_order(usages: Iterable[Usage]) -> tuple[Usage, ...]:
    return tuple(sorted(usages, key=lambda usage: usage.pids))


def _owner(owners: tuple[Owner, ...], pods: Mapping[str, Mapping[str, Any]]) -> Owner | None:
    """The outermost pod that this cluster knows.

    What is further in can be made by whoever may write cgroups inside a container, and what is further out is the node
    itself, where a cluster runs in the pods of another.
    """
    return next((owner for owner in owners if owner.pod_uid in pods), owners[0] if owners else None)


def _is_our_own(owner: Owner | None, pods: Mapping[str, Mapping[str, Any]]) -> bool:
    """A pod of MPS daemons: their resource is refused to every other namespace at admission."""
    pod = pods.get(owner.pod_uid) if owner else None
    return pod is not None and any(names.MPS_RESOURCE in _limits(container) for container in _containers(pod))


def _usage(
    uuid: Uuid,
    share: ShareName,
    taken_at: float,
    owner: Owner | None,
    listed: tuple[Listed, ...],
    pods: Mapping[str, Mapping[str, Any]],
    model: GpuShare | None,
    grants: Mapping[tuple[str, str], Mapping[str, Grant]],
) -> Usage:
    pod = pods.get(owner.pod_uid) if owner else None
    metadata = pod["metadata"] if pod is not None else {}
    claims = grants.get((metadata.get("namespace", ""), metadata.get("name", "")), {})
    container = _container(pod, owner.container_id, share, claims) if pod is not None and owner is not None else None
    of_claim = claims.get(container["name"]) if container is not None else None
    slot = container is not None and (of_claim is not None or _has_slot(container, share))
    carried = grant_from_environment(_environment(container)) if container is not None and slot else None
    granted = of_claim or (carried if carried is not None and carried.share == share else None)
    default = default_grant(model) if slot and granted is None and model is not None else None
    return Usage(
        uuid=uuid,
        share=share,
        pod_uid=owner.pod_uid if owner else "",
        namespace=metadata.get("namespace", ""),
        pod=metadata.get("name", ""),
        container=container["name"] if container is not None else "",
        container_id=owner.container_id if owner else "",
        listed=listed,
        slot=slot,
        grant=granted or default,
        by_default=default is not None,
        taken_at=taken_at,
    )


def _by_pod(claimed: ClaimedGpu, share: ShareName) -> dict[tuple[str, str], dict[str, Grant]]:
    """(namespace, pod) -> what its containers' claims of the share grant."""
    found: dict[tuple[str, str], dict[str, Grant]] = {}
    for (namespace, pod, container), grant in claimed.items():
        if grant.share == share:
            found.setdefault((namespace, pod), {})[container] = grant
    return found


def _container(
    pod: Mapping[str, Any], container_id: str, share: ShareName, claims: Mapping[str, Grant]
) -> Mapping[str, Any] | None:
    """By the pod's status; where that lags behind the runtime, the only one that may be here at all."""
    containers = {container["name"]: container for container in _containers(pod)}
    for kind in STATUSES:
        for item in pod.get("status", {}).get(kind) or ():
            if container_id and (item.get("containerID") or "").endswith(f"://{container_id}"):
                return containers.get(item["name"])
    with_slot = [one for name, one in containers.items() if name in claims or _has_slot(one, share)]
    return with_slot[0] if len(with_slot) == 1 else None


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = pod.get("spec", {})
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return [container for kind in kinds for container in spec.get(kind) or ()]


def _has_slot(container: Mapping[str, Any], share: ShareName) -> bool:
    return str(_limits(container).get(names.slot_resource(share), "0")) != "0"


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get("limits") or {}


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value") or "" for variable in container.get("env") or ()}


def _cgroup_uid(metadata: Mapping[str, Any]) -> str:
    static = str((metadata.get("annotations") or {}).get(_STATIC_POD_HASH, ""))
    # Anybody may annotate a pod; in this form it is at least no uid of another ordinary one.
    return static if re.fullmatch("[0-9a-f]{32}", static) else str(metadata["uid"])
