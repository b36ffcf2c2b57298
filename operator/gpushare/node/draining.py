"""When a GPU is idle for good: free slots withdrawn, confirmed by the kubelet, and no slot held. Pure.

The order proves it. Free slots are withdrawn; then a reading of the kubelet begins that asks first what can be
allocated and then what is held. Where the first names no slot of the GPU, none can be allocated any more, so the second
is final. An allocation that this reading may have missed is promised, and a promised slot is never idle.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid

Slots = frozenset[int]
Holdings = Mapping[tuple[ShareName, Uuid], Slots]


@dataclass(frozen=True, slots=True)
class KubeletView:
    """One reading of PodResources, begun at `started`: (share, GPU) -> slots."""

    started: float
    allocatable: Holdings
    held: Holdings

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
        share = names.share_of_resource(resource)
        if share is None:
            continue
        try:
            uuid, slot = names.parse_slot_id(device_id)
        except ValueError:
            continue
        grouped.setdefault((share, uuid), set()).add(slot)
    return {key: frozenset(slots) for key, slots in grouped.items()}


def idle(share: ShareName, uuid: Uuid, withdrawn_at: float | None, view: KubeletView | None, promised: Slots) -> bool:
    """`withdrawn_at`: since when no free slot is offered, on the clock of `view.started`; None when one still is."""
    if withdrawn_at is None or view is None or view.started <= withdrawn_at:
        return False
    return not (view.allocatable.get((share, uuid)) or view.holding(share, uuid) or promised)
