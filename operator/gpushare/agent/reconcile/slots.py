"""A share's slots on this node: which ids the kubelet is offered, and which containers may start. Pure.

Guarantees of the offer: a held slot is offered for as long as it is held, since the kubelet, when it restarts, refuses
containers whose device is gone; and the slots offered are never more than `per_gpu`, unless more than that are held
already.

Guarantees of a start: a container starts only while fewer than `per_gpu`, as the share is now, have started on its GPU
and still hold their slots; as soon as there is room, one of those that wait may start, even if all of them wait; one
that has started is never held back, however often it restarts. A share may shrink between a container's Allocate and
its start, and the kubelet may hand out a slot that the agent is just withdrawing: to refuse it in Allocate would make
the pod Failed, so its container waits before it starts. Which containers count is decided by who has started: neither a
slot's number nor the time of its allocation shows that.
Does not guarantee this across a restart of the agent, where every container with a slot counts as started; nor where
the kubelet gives one slot to two containers, which count as one (see `allocation_lock`).
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count, islice

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.podresources.holdings import Slots
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare


@dataclass(frozen=True, slots=True)
class StartCapacity:
    """One GPU as it is now. `held`: slots of containers, with pending ones; `per_gpu`: None for an unknown share."""

    held: Slots
    per_gpu: int | None


def waits_for(unstarted: AbstractSet[int], capacity: StartCapacity) -> int | None:
    """How many started containers one that has not started waits for, some of which must end; None: it may start.

    Those that have not started do not count: else they could wait for each other.
    """
    others = len(capacity.held - unstarted)
    return others if capacity.per_gpu is not None and others >= capacity.per_gpu else None


@dataclass(frozen=True, slots=True)
class OfferedSlot:
    slot: int
    healthy: bool


def offered_slots(per_gpu: int, held: AbstractSet[int], accepting: bool, lost: bool) -> list[OfferedSlot]:
    """By number: the held slots and, while `accepting`, the lowest free ones up to `per_gpu` together.

    A held slot is unhealthy only on a `lost` GPU: the kubelet counts an unhealthy one against capacity elsewhere.
    """
    free = per_gpu - len(held) if accepting and not lost else 0
    lowest = islice((slot for slot in count() if slot not in held), max(free, 0))
    return [OfferedSlot(slot, not lost) for slot in sorted({*held, *lowest})]


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """Everything that a GPU's offer depends on. `held`: slots of containers, with pending ones."""

    uuid: Uuid
    per_gpu: int
    held: Slots
    accepting: bool
    lost: bool = False
    numa_node: int | None = None
    whole: bool = False
    """It is one device, of the GPU's own UUID."""


def offer_of(plan: GpuPlan, share: GpuShare | None, takes_pods: bool, view: GpuView | None, held: Slots) -> GpuOffer:
    """Free slots only on a GPU that takes pods, of a share that still takes clients; held ones always."""
    per_gpu = share.clients.per_gpu if share else 0
    lost = view is not None and view.lost
    accepting = takes_pods and plan.stage is GpuStage.SERVE and share is not None and not share.deleting and not lost
    numa_node = view.info.numa_node if view else None
    return GpuOffer(plan.uuid, per_gpu, held, accepting, lost, numa_node, bool(plan.resource))


def offered_devices(offers: Iterable[GpuOffer]) -> list[OfferedDevice]:
    return [
        OfferedDevice(
            offer.uuid if offer.whole else names.slot_id(offer.uuid, item.slot), item.healthy, offer.numa_node
        )
        for offer in offers
        for item in offered_slots(offer.per_gpu, offer.held, offer.accepting, offer.lost)
    ]
