"""Who may attach to a GPU, as grants.json says it to the attach broker. Pure.

A container has a part of a GPU where the kubelet's list or a prepared claim says so. The kubelet does not list ordinary
init containers. One that asks for a slot has a part of the GPU that its pod holds, or of each GPU of the share where
none is known, until the pod's containers run. Which GPU it reaches is decided by its mounts.

Guarantees: the file stays within what a reader takes, whatever pods there are. What does not fit is left out in this
order: containers without a part, then parts beyond PARTS_FIRST of one pod, then pods that do not run yet. So a pod with
many containers cannot keep another pod from attaching.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpushare.agent.attach.protected import protected_clients, within_bound
from gpushare.agent.observe.granted import container_grant
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.client_class import ClientClass
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import Grant, most_contexts
from gpushare.kube.pods import Pod, container_id, container_statuses, containers, has_ended, is_running
from gpushare.mps.files import MAX_BYTES
from gpushare.mps.wire import ClientGrant, GrantedContainer, GrantedPod

MAX_PODS, MAX_CONTAINERS = 256, 128
"""The bounds of `GpuGrants` and `GrantedPod`."""
PARTS_FIRST = 8
"""So many containers of each pod are written before further ones of any pod."""
MAX_CLOSED = 512
_HEAD_BYTES = 8192
"""What stands before the pods, `closed` included, takes no more."""
_POD_BYTES, _CONTAINER_BYTES = 64, 176
"""The JSON of one takes so many, without its names and ids."""

_OPEN = (DaemonReason.READY, DaemonReason.CLIENT_TABLE_FULL, DaemonReason.BROKER_NOT_READY)
"""A GPU with one of these reasons is not closed. In a full table the MPS server itself refuses, and the processes of a
container may still replace each other. Where the broker alone is not ready, all else is verified, and it lets nobody in
until it is.
"""


@dataclass(frozen=True, slots=True)
class PartHolders:
    """Who holds parts of this node's GPUs.

    `pods`: by the uid in the names of their cgroups. `places`: where the containers' slots and claims are. `claimed`:
    what the claims grant. `shares`: those of today. `by_cdi`: containers get the library by which they have a class.
    """

    pods: Mapping[str, Pod]
    places: Mapping[ContainerName, ShareGpu]
    claimed: Mapping[ContainerName, Grant]
    shares: Mapping[ShareName, GpuShare]
    by_cdi: bool = True


def closed(readiness: Readiness) -> str:
    """Why processes that start in running containers may not attach; empty: they may.

    Draining closes nothing: who runs may go on to start processes. All that makes the daemon unverified does, such as
    limits that are not in force, a fault that is waited out, or clients that are being ended after maxWait. The broker
    keeps a process waiting for a while before it refuses, so a brief reason harms nobody.
    """
    if readiness.reason in _OPEN:
        return ""
    return f"{readiness.reason.value}: {readiness.message}"[:MAX_CLOSED]


def granted_pods(
    holders: PartHolders, share: ShareName, uuid: Uuid, before: Collection[GrantedPod] = ()
) -> tuple[list[GrantedPod], list[str]]:
    """The pods that hold a part of the GPU, those that run first, as far as the file has room for them. And those that
    it has no room for, as namespace/name: of each some containers or all. `before`: what the file holds.
    """
    by_pod: dict[tuple[str, str], set[ShareGpu]] = {}
    for (namespace, name, _), place in holders.places.items():
        by_pod.setdefault((namespace, name), set()).add(place)
    pods = []
    for uid, pod in holders.pods.items():
        places = by_pod.get((pod["metadata"]["namespace"], pod["metadata"]["name"]), set())
        if not has_ended(pod) and ((share, uuid) in places or (not places and _may_initialise(pod))):
            granted = _granted_pod(uid, pod, holders, share, uuid)
            if any(container.grant for container in granted.containers):
                pods.append((_rank(granted, listed=bool(places)), granted))
    ranked_pods = [granted for _, granted in sorted(pods, key=lambda ranked: ranked[0])]
    known = holders.shares.get(share)
    if known is not None and known.classes is not None:
        most = known.classes.protected.per_gpu
        ranked_pods = within_bound(ranked_pods, most, protected_clients(before), holders.pods)
    return _within_bounds(ranked_pods)


def _granted_pod(uid: str, pod: Pod, holders: PartHolders, share: ShareName, uuid: Uuid) -> GrantedPod:
    """The pod with all its containers that run or may: more, perhaps, than a file takes.

    One that has ended for good is no process of the pod. So a container whose postStart hook waits for its own program
    is the only one, where it is, although the kubelet writes no status before the hook has ended.
    """
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    ids = {str(item["name"]): container_id(item) for item in container_statuses(pod) if is_running(item)}
    starting = {id(container) for container in _ordinary_init_containers(pod)} if _may_initialise(pod) else set()
    known, listed = holders.shares.get(share), []
    ended = set(_ended_for_good(pod))
    for container in containers(pod, ephemeral=True):
        if container["name"] in ended:
            continue
        key = (namespace, name, container["name"])
        here = holders.places.get(key) == (share, uuid)
        grant = None
        if here or (id(container) in starting and key not in holders.places):
            grant = container_grant(container, share, known, holders.claimed.get(key)).grant
        listed.append(
            GrantedContainer(
                name=container["name"],
                id=ids.get(container["name"], ""),
                grant=_client_grant(grant, known, by_cdi=holders.by_cdi),
            )
        )
    return GrantedPod(uid=uid, namespace=namespace, name=name, containers=listed)


def _ended_for_good(pod: Pod) -> Iterator[str]:
    """The names of containers that ended and that the kubelet does not start again in this sandbox. In one made anew it
    starts init containers again; until the pod's status shows that, a process of one counts as the only container left,
    within that one's grant.
    """
    spec = pod.get("spec") or {}
    restarts = {str(container["name"]): _restart_policy(container, spec) for container in spec.get("containers") or ()}
    restarts |= {str(container["name"]): "OnFailure" for container in _ordinary_init_containers(pod)}
    restarts |= {str(container["name"]): "Never" for container in spec.get("ephemeralContainers") or ()}
    for status in container_statuses(pod):
        ended, policy = (status.get("state") or {}).get("terminated"), restarts.get(str(status["name"]), "Always")
        if ended and (policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0)):
            yield str(status["name"])


def _restart_policy(container: Mapping[str, object], spec: Mapping[str, object]) -> str:
    """`restartPolicyRules` may start it again, whatever its policy says."""
    if container.get("restartPolicyRules"):
        return "Always"
    return str(container.get("restartPolicy") or spec.get("restartPolicy") or "Always")


def _client_grant(grant: Grant | None, share: GpuShare | None, *, by_cdi: bool) -> ClientGrant | None:
    if grant is None or grant.process_limit_mib < 1:
        return None
    contexts = most_contexts(grant.processes, share.clients.per_gpu) if share is not None else 0
    has_class = by_cdi and (share is None or share.counts_launches)
    beside = grant.threads_beside_protected if has_class else 0
    client_class = grant.client_class or _class_without_classes(share)
    return ClientGrant(
        threads=grant.threads,
        memory_mib=grant.process_limit_mib,
        processes=grant.processes,
        contexts=contexts,
        client_class=client_class if has_class else "",
        sm_percent=beside if beside < 100 else 0,
    )


def _class_without_classes(share: GpuShare | None) -> str:
    """The class of a client that was admitted before its share had a queue; empty: none."""
    queued = share is not None and share.queue is not None and share.classes is None
    return ClientClass.NORMAL.value if queued else ""


def _may_initialise(pod: Pod) -> bool:
    """Whether the kubelet has taken it up, and its ordinary init containers may run: none of the others does yet."""
    status = pod.get("status") or {}
    if not any(_ordinary_init_containers(pod)):
        return False
    return bool(status.get("startTime")) and not any(map(is_running, status.get("containerStatuses") or ()))


def _ordinary_init_containers(pod: Pod) -> Iterator[Mapping[str, object]]:
    """The init containers that are no sidecars: the kubelet lists those."""
    for container in (pod.get("spec") or {}).get("initContainers") or ():
        if container.get("restartPolicy") != "Always":
            yield container


def _rank(pod: GrantedPod, *, listed: bool) -> tuple[bool, bool, str, str, str]:
    """`listed`: the kubelet or a claim says which GPU it has."""
    runs = any(container.grant and container.id for container in pod.containers)
    return not runs, not listed, pod.namespace, pod.name, pod.uid


def _counts(container: GrantedContainer) -> bool:
    """Whether it has a part, or is to be told why it has none."""
    return container.grant is not None or container.too_many_protected


def _within_bounds(pods: list[GrantedPod]) -> tuple[list[GrantedPod], list[str]]:
    bytes_left = MAX_BYTES - _HEAD_BYTES
    chosen: list[list[GrantedContainer]] = [[] for _ in pods]
    parts = [[container for container in pod.containers if _counts(container)] for pod in pods]
    others = [[container for container in pod.containers if not _counts(container)] for pod in pods]
    rounds = (
        [some[:PARTS_FIRST] for some in parts],
        [some[PARTS_FIRST:MAX_CONTAINERS] for some in parts],
        others,
    )
    for number, some in enumerate(rounds):
        for pod, kept, wanted in zip(pods[:MAX_PODS], chosen, some, strict=False):
            if number > 0 and not kept:
                continue
            bytes_left -= _POD_BYTES + len(f"{pod.uid}{pod.namespace}{pod.name}") if number == 0 else 0
            for container in wanted[: MAX_CONTAINERS - len(kept)]:
                size = _CONTAINER_BYTES + len(container.name) + len(container.id)
                if size > bytes_left:
                    break
                bytes_left -= size
                kept.append(container)
    kept_pods = [
        GrantedPod(uid=pod.uid, namespace=pod.namespace, name=pod.name, containers=kept)
        for pod, kept in zip(pods, chosen, strict=True)
        if kept
    ]
    left_out = [
        f"{pod.namespace}/{pod.name}" for pod, kept in zip(pods, chosen, strict=True) if len(kept) < len(pod.containers)
    ]
    return kept_pods, left_out
