"""Containers that have a slot, but of a GPU that is full by now: they wait until others have ended. Pure.

A share may shrink between a container's Allocate and its start, and the kubelet may hand out a slot that the agent is
just withdrawing. Refusing in Allocate would make the pod Failed, so the container is held back before it starts. What
counts is who has started; neither a slot's number nor when it was handed out says that.

Guarantees: a container starts only while fewer than `per_gpu`, as the share is now, have started on its GPU and hold
their slots still; as soon as there is room one of those that wait may start, even if all do; one that had started is
never held back, however often it restarts.
Does not guarantee this across a restart of the agent: whoever got a slot before counts as started; nor where the
kubelet gives one slot to two containers, which are counted as one (see `turns`).
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpushare.node.holdings import Slots


@dataclass(frozen=True, slots=True)
class Room:
    """One GPU as it is now. `held`: slots of containers, with those promised; `per_gpu`: None for an unknown share."""

    held: Slots
    per_gpu: int | None


def waits_for(unstarted: AbstractSet[int], room: Room) -> int | None:
    """How many containers one that has not started waits for, some of which must end; None: it may start.

    Those that have not started do not count: else they could wait for each other.
    """
    others = len(room.held - unstarted)
    return others if room.per_gpu is not None and others >= room.per_gpu else None
