"""When a GPU is idle for good: free slots withdrawn, confirmed by the kubelet, and no slot held. Pure.

The order proves it. Free slots are withdrawn; then a reading of the kubelet begins that asks first what can be
allocated and then what is held. Where the first names no slot of the GPU, none can be allocated any more, so the second
is final. An allocation that this reading may have missed is promised, and a promised slot is never idle.

Of claims the operator knows which are allocated, and waits for those; here it counts what is prepared, and that the
scheduler has had the time to see that the GPU is closed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid

SCHEDULER_SECONDS = 5.0
"""A scheduler that saw the GPU open until it was closed has written its allocation by then, or will fail to."""

Slots = frozenset[int]
Place = tuple[ShareName, Uuid]
Holdings = Mapping[Place, Slots]
ContainerName = tuple[str, str, str]
"""(namespace, pod, container)."""


@dataclass(frozen=True, slots=True)
class KubeletView:
    """One reading of PodResources, begun at `started`: (share, GPU) -> slots, and whose they are (namespace/name);
    `places` has the same by container, of which each has one slot."""

    started: float
    allocatable: Holdings
    held: Holdings
    pods: Mapping[Place, frozenset[str]] = field(default_factory=dict)
    places: Mapping[ContainerName, Place] = field(default_factory=dict)

    def holding(self, share: ShareName, uuid: Uuid) -> Slots:
        return self.held.get((share, uuid), frozenset())


def united(listed: Holdings, promised: Holdings) -> dict[tuple[ShareName, Uuid], Slots]:
    """Every slot held, whether the kubelet lists it already or was only just given it."""
    nothing: Slots = frozenset()
    return {key: listed.get(key, nothing) | promised.get(key, nothing) for key in listed.keys() | promised.keys()}


def by_gpu(devices: Collection[tuple[str, str]]) -> dict[tuple[ShareName, Uuid], Slots]:
    """(resource, device id) pairs grouped; resources and ids that are no slots of ours are passed over."""
    grouped: dict[tuple[ShareName, Uuid], set[int]] = {}
    for resource, device_id in devices:
        place = _place(resource, device_id)
        if place is not None:
            grouped.setdefault(place[:2], set()).add(place[2])
    return {key: frozenset(slots) for key, slots in grouped.items()}


def pods_by_gpu(devices: Collection[tuple[str, str, str]]) -> dict[tuple[ShareName, Uuid], frozenset[str]]:
    """(resource, device id, pod) grouped to the pods of each share and GPU; what is no slot of ours is passed over."""
    grouped: dict[tuple[ShareName, Uuid], set[str]] = {}
    for resource, device_id, pod in devices:
        place = _place(resource, device_id)
        if place is not None:
            grouped.setdefault(place[:2], set()).add(pod)
    return {key: frozenset(pods) for key, pods in grouped.items()}


def places(devices: Collection[tuple[str, str, ContainerName]]) -> dict[ContainerName, Place]:
    """(resource, device id, container): where each container's slot is; what is no slot of ours is passed over."""
    found = ((container, _place(resource, device_id)) for resource, device_id, container in devices)
    return {container: place[:2] for container, place in found if place is not None}


def _place(resource: str, device_id: str) -> tuple[ShareName, Uuid, int] | None:
    share = names.share_of_resource(resource)
    if share is None:
        return None
    try:
        return share, *names.parse_slot_id(device_id)
    except ValueError:
        return None


def idle(share: ShareName, uuid: Uuid, withdrawn_at: float | None, view: KubeletView | None, promised: Slots) -> bool:
    """`withdrawn_at`: since when no free slot is offered, on the clock of `view.started`; None when one still is."""
    if withdrawn_at is None or view is None or view.started <= withdrawn_at:
        return False
    return not (view.allocatable.get((share, uuid)) or view.holding(share, uuid) or promised)


def unclaimed(closed_since: float | None, now: float, prepared: Slots) -> bool:
    """The same for a GPU that claims are allocated of. `closed_since`: when the API's slice was first seen so."""
    return closed_since is not None and now - closed_since >= SCHEDULER_SECONDS and not prepared
