"""Which slots of a GPU the kubelet is offered. Pure.

Guarantees: a held slot is offered for as long as it is held, since the kubelet, when it restarts, refuses containers
whose device is gone; and the slots offered are never more than `per_gpu`, unless more than that are held already.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count, islice


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
