"""Who uses each shared GPU, how much, and what was granted to them: what a reading is, and how it is made. Pure.

What a container was granted is found by `granted`; `usage_reader` reads what a reading is made from.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpushare.agent.observe.granted import FoundGrant, container_grant, has_slot
from gpushare.agent.podresources.holdings import ContainerName
from gpushare.agent.process.processes import Identity
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant, most_contexts
from gpushare.kube.pods import (
    Container,
    Pod,
    container_name,
    containers,
    limits,
    priority,
)
from gpushare.process import procfs
from gpushare.process.procfs import Owner

ClaimedGpu = Mapping[ContainerName, Grant]
"""What the prepared claims of containers grant."""


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process that NVML lists. `owners`: its pods by its cgroup, the outermost first; empty: a process of the host.

    `started`: clock ticks since boot.
    """

    pid: int
    started: int
    memory_mib: int
    mps: bool
    owners: tuple[Owner, ...] = ()
    terminated: bool = False
    """Its contexts were ended through the MPS daemon: it computes no more, but is listed with its memory until it
    exits."""
    unmounted: bool = False
    """Its container was started without the mounts of its slot, so it cannot reach MPS. Read only of processes that are
    no MPS clients. Never by what a process sees that made mounts of its own."""
    unknown: str = ""
    """Why that is not known, or why its pod is not, with the file and the bound. Empty: all is known."""


def newest_first(processes: Iterable[ListedProcess]) -> tuple[ListedProcess, ...]:
    """Sorts one container's processes. The oldest, its main process, comes last: its end kills all others."""
    return tuple(sorted(processes, key=lambda process: (process.started, process.pid), reverse=True))


@dataclass(frozen=True, slots=True)
class Usage:
    """What one container uses of a GPU, either through MPS or past it; or one process, if no container is known.

    `pod_uid` is empty for a process of the host. `pod` alone is empty if the API does not know the pod that the cgroup
    names; `container` alone if the pod's status does not show which container it is.
    """

    uuid: Uuid
    share: ShareName
    pod_uid: str
    namespace: str
    pod: str
    container: str
    container_id: str
    processes: tuple[ListedProcess, ...]
    slot: bool
    """The container asks for a slot of this share, or has a claim of it; or it has the GPU whole."""
    grant: Grant | None
    """None: no slot, a share that is not known any more, or a whole GPU."""
    by_default: bool
    """The share's default of today stands in, since the pod carries no grant: it never passed the webhook."""
    taken_at: float
    """CLOCK_BOOTTIME seconds, from before NVML was asked."""
    priority: int = 0
    """The pod's."""
    most_contexts: int = 0
    """Of the MPS server, for all of its processes; 0: there is no bound."""

    @property
    def place(self) -> tuple[str, str]:
        """Its pod and container: `gpushare.mps.identity.Container`."""
        return self.pod_uid, self.container

    @property
    def mps(self) -> bool:
        return all(process.mps for process in self.processes)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def living(self) -> tuple[ListedProcess, ...]:
        """The processes whose contexts were not ended, the newest first."""
        return newest_first(process for process in self.processes if not process.terminated)

    @property
    def unknown(self) -> str:
        """What is not known of its processes: see ListedProcess."""
        return next((process.unknown for process in self.processes if process.unknown), "")

    @property
    def memory_mib(self) -> int:
        """The sum over the processes, their contexts included."""
        return sum(process.memory_mib for process in self.processes)


@dataclass(frozen=True, slots=True)
class ListedClients:
    """Whom the GPU's MPS server lists. `contexts`: how many each has, by the PID that it sent. By the attach broker
    `unattached`: those who never attached, `without_pages`: best-effort clients that never asked for their pages, and
    `without_place`: those whose container has no place, while none is free.
    `without_library`: those of these that do not see the library by which a client has a class. `named`: those that
    NVML does not list as clients; one that has ended has no start time (0).
    """

    contexts: Mapping[int, int]
    unattached: frozenset[Identity] = frozenset()
    without_pages: frozenset[Identity] = frozenset()
    without_place: frozenset[Identity] = frozenset()
    without_library: frozenset[Identity] = frozenset()
    named: tuple[ListedProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """All processes on one GPU but our own servers, at one time."""

    uuid: Uuid
    share: ShareName
    taken_at: float
    gpu_memory_mib: int
    """The memory of the whole GPU."""
    usages: tuple[Usage, ...]
    without_mounts: tuple[Usage, ...] = ()
    """Containers with a slot that cannot reach the GPU's MPS daemon, or of which that is not known, and that NVML does
    not list: see `mounts`."""
    free_mib: int | None = None
    """The free memory of the whole GPU, by NVML; None: it is not known."""
    whole: bool = False
    """The GPU is given whole: `Usage.slot` says whether the container has it, and there is no grant."""
    cdi_on: bool = False
    """A container of the node has the mounts of its slot."""
    served: ListedClients | None = None
    """None: it is not known now."""

    @property
    def credible(self) -> bool:
        """Whether its figures can be true together."""
        return sum(usage.memory_mib for usage in self.usages) <= self.gpu_memory_mib


def reading(
    uuid: Uuid,
    share: ShareName,
    taken_at: float,
    gpu_memory_mib: int,
    listed: Iterable[ListedProcess],
    pods: Mapping[str, Pod],
    gpu_share: GpuShare | None,
    unmounted: Iterable[ListedProcess] = (),
    claimed: ClaimedGpu = MappingProxyType({}),
    holders: frozenset[ContainerName] | None = None,
    free_mib: int | None = None,
    cdi_on: bool = False,
    served: ListedClients | None = None,
) -> Reading:
    """Pure. `pods`: from `pods_by_cgroup_uid`. `gpu_share`: the share of today; None: it is not known. `holders`: of a
    GPU that is given whole. `free_mib`, `cdi_on`, `served`: see Reading.

    `unmounted`: one process of each container that has a part of the GPU and was started without its mounts, or of
    which that is not known.
    """
    grants = _claims_by_pod(claimed, share)

    def usage(owner: Owner | None, listed: tuple[ListedProcess, ...]) -> Usage:
        return _usage(uuid, share, taken_at, owner, listed, pods, gpu_share, grants, holders)

    groups: dict[tuple[object, ...], tuple[Owner | None, list[ListedProcess]]] = {}
    for process in listed:
        owner = _owner(process.owners, pods)
        key = (process.pid,) if owner is None else (owner.pod_uid, owner.container_id)
        groups.setdefault((process.mps, *key), (owner, []))[1].append(process)
    usages = [
        usage(owner, tuple(sorted(group, key=lambda process: process.pid)))
        for owner, group in groups.values()
        if not _is_mps_pod(owner, pods)
    ]
    known = {usage.container_id for usage in usages}
    unreached = [
        usage(owner, (process,))
        for process in unmounted
        if (owner := _owner(process.owners, pods)) is not None and owner.container_id not in known
    ]
    with_slot = (usage for usage in unreached if usage.slot)
    whole = holders is not None
    return Reading(
        uuid, share, taken_at, gpu_memory_mib, _in_order(usages), _in_order(with_slot), free_mib, whole, cdi_on, served
    )


def _in_order(usages: Iterable[Usage]) -> tuple[Usage, ...]:
    return tuple(sorted(usages, key=lambda usage: usage.pids))


def _owner(owners: tuple[Owner, ...], pods: Mapping[str, Pod]) -> Owner | None:
    """One of a pod that this cluster knows; else the outermost."""
    return procfs.owner_among(owners, pods) or next(iter(owners), None)


def _is_mps_pod(owner: Owner | None, pods: Mapping[str, Pod]) -> bool:
    """Admission refuses the resource of MPS pods to every other namespace."""
    pod = pods.get(owner.pod_uid) if owner else None
    return pod is not None and any(
        names.MPS_RESOURCE in limits(container) for container in containers(pod, ephemeral=True)
    )


def _usage(
    uuid: Uuid,
    share: ShareName,
    taken_at: float,
    owner: Owner | None,
    listed: tuple[ListedProcess, ...],
    pods: Mapping[str, Pod],
    gpu_share: GpuShare | None,
    grants: Mapping[tuple[str, str], Mapping[str, Grant]],
    holders: frozenset[ContainerName] | None,
) -> Usage:
    pod = pods.get(owner.pod_uid) if owner else None
    metadata = pod["metadata"] if pod is not None else {}
    of_pod = (metadata.get("namespace", ""), metadata.get("name", ""))
    claims = grants.get(of_pod, {})

    def has_part(container: Container) -> bool:
        if holders is not None:
            return (*of_pod, container["name"]) in holders
        return container["name"] in claims or has_slot(container, share)

    container = _container(pod, owner, has_part) if pod is not None and owner is not None else None
    granted, slot = None, container is not None and has_part(container)
    if container is not None and holders is None:
        granted = container_grant(container, share, gpu_share, claims.get(container["name"]))
    return Usage(
        uuid=uuid,
        share=share,
        pod_uid=owner.pod_uid if owner else "",
        namespace=metadata.get("namespace", ""),
        pod=metadata.get("name", ""),
        container=container["name"] if container is not None else "",
        container_id=owner.container_id if owner else "",
        processes=listed,
        slot=slot,
        grant=granted.grant if granted is not None else None,
        by_default=granted is not None and granted.by_default,
        taken_at=taken_at,
        priority=priority(pod) if pod is not None else 0,
        most_contexts=_most_contexts(granted, gpu_share),
    )


def _most_contexts(granted: FoundGrant | None, gpu_share: GpuShare | None) -> int:
    if granted is None or granted.grant is None or gpu_share is None:
        return 0
    return most_contexts(granted.grant.processes, gpu_share.clients.per_gpu)


def _claims_by_pod(claimed: ClaimedGpu, share: ShareName) -> dict[tuple[str, str], dict[str, Grant]]:
    """What the claims of each pod's containers grant of the share, by (namespace, pod) and container."""
    by_pod: dict[tuple[str, str], dict[str, Grant]] = {}
    for (namespace, pod, container), grant in claimed.items():
        if grant.share == share:
            by_pod.setdefault((namespace, pod), {})[container] = grant
    return by_pod


def _container(pod: Pod, owner: Owner, has_part: Callable[[Container], bool]) -> Container | None:
    """The container by the pod's status or its mounts; without both the only one that may be on this GPU."""
    by_name = {container["name"]: container for container in containers(pod, ephemeral=True)}
    name = container_name(pod, owner.container_id, owner.container)
    if name:
        return by_name.get(name)
    with_part = [container for container in by_name.values() if has_part(container)]
    return with_part[0] if len(with_part) == 1 else None
