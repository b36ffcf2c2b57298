"""A share's slots on one GPU: which of them the kubelet is offered. Pure.

Guarantees: a held slot is offered for as long as it is held, since the kubelet, when it restarts, refuses containers
whose device is gone; and the healthy slots are never more than `per_gpu`, unless more than that are held already.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count, islice

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.podresources.holdings import Slots
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.api.gpunode import Uuid
from gpushare.api.gpushare import GpuShare


def offered_slots(
    per_gpu: int, held: AbstractSet[int], accepting: bool, lost: bool, forgotten: AbstractSet[int] = frozenset()
) -> dict[int, bool]:
    """Whether each slot is healthy, by number: those held and, while `accepting`, the lowest free ones up to `per_gpu`
    together.

    A held slot is unhealthy only on a `lost` GPU, since the kubelet counts an unhealthy one against capacity elsewhere,
    and where the kubelet has `forgotten` who holds it: it would give it to another.
    """
    free = per_gpu - len(held) if accepting and not lost else 0
    lowest = islice((slot for slot in count() if slot not in held), max(free, 0))
    return {slot: not lost and slot not in forgotten for slot in sorted({*held, *lowest})}


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
    forgotten: Slots = frozenset()
    """Those of `held` whose holders the kubelet does not know any more."""

    @property
    def beyond(self) -> int:
        """How many slots are offered beyond `per_gpu`, in the place of forgotten ones, which are unhealthy: the
        scheduler takes their pods off the healthy ones, and would else count each of them twice. None of whole GPUs.
        """
        return 0 if self.whole else len(self.forgotten)

    def slots(self) -> dict[int, bool]:
        return offered_slots(self.per_gpu + self.beyond, self.held, self.accepting, self.lost, self.forgotten)


def offer_of(
    plan: GpuPlan,
    share: GpuShare | None,
    takes_pods: bool,
    view: GpuView | None,
    held: Slots,
    forgotten: Slots = frozenset(),
) -> GpuOffer:
    """Free slots only on a GPU that takes pods, of a share that still takes clients; held ones always."""
    per_gpu = share.slots_per_gpu if share else 0
    lost = view is not None and view.lost
    accepting = takes_pods and plan.stage is GpuStage.SERVE and share is not None and not share.deleting and not lost
    numa_node = view.info.numa_node if view else None
    return GpuOffer(plan.uuid, per_gpu, held, accepting, lost, numa_node, bool(plan.resource), forgotten)
