"""Containers that got a slot when their GPU had no more: they wait until others have ended. Pure.

The kubelet may hand out a freed slot in the moment before the agent withdraws it, also of a share that has shrunk.
Refusing in Allocate would make the pod Failed, so such a container is held back before it starts instead.

Guarantees: of the containers that started after a share shrank there are never more on a GPU, with those still there,
than `per_gpu`; as soon as there is room one of the late ones may start, even if all are late; a container that came in
time is never held back, nor is one that had started, however often it restarts.
Does not guarantee this across a restart of the agent, which forgets who is late.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpushare.node.draining import Slots


@dataclass(frozen=True, slots=True)
class Room:
    """One GPU as it is now. `held`: slots of containers, with those promised; `per_gpu`: None for an unknown share."""

    held: Slots
    per_gpu: int | None


def comes_late(slot: int, room: Room) -> bool:
    """Whether a container that gets `slot` now makes more than the share has."""
    return room.per_gpu is not None and len(room.held | {slot}) > room.per_gpu


def waits_for(late: AbstractSet[int], room: Room) -> int | None:
    """How many containers a late one waits for, some of which must end; None: it may start.

    The late ones do not count, as they have not started: else they could wait for each other.
    """
    others = len(room.held - late)
    return others if room.per_gpu is not None and others >= room.per_gpu else None
