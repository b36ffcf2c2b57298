"""Which worker does what next: items through stages, each stage a pool of workers, with bounded queues between. Pure.

Back-pressure: a stage takes an item only if its result will have room in the queue behind it. So no queue grows above
its capacity, no worker waits with a finished item in its hands, and `slots` buffers hold all that is in flight.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    worker: int
    """Counted through all stages: those of the first stage come first."""
    item: int
    slot: int
    """The item's buffer, its own until it left the last stage."""


class Flow:
    """Items 0 … `items` - 1, in that order into the first stage. `stages` are numbers of workers."""

    def __init__(self, items: int, stages: Sequence[int], capacity: int = 1) -> None:
        """Raises ValueError for a stage without workers or a queue without room."""
        if items < 0 or capacity < 1 or not stages or min(stages) < 1:
            raise ValueError(
                f"{items} items, stages of {list(stages)} workers, queues of {capacity}: must be at least 1"
            )
        self._capacity = capacity
        self._waiting = deque(range(items))
        self._queues: list[deque[Order]] = [deque() for _ in stages[1:]]
        self._busy: dict[int, Order] = {}
        self._stage_of = [stage for stage, workers in enumerate(stages) for _ in range(workers)]
        self._idle = [deque(it for it, of in enumerate(self._stage_of) if of == stage) for stage in range(len(stages))]
        self.slots = capacity * len(self._queues) + stages[-1]
        """Buffers that are enough for everything in flight."""
        self._free = deque(range(self.slots))
        self._left = items
        self.longest = [0] * len(self._queues)
        """The most items that waited in each queue."""

    @property
    def finished(self) -> bool:
        return self._left == 0

    def orders(self) -> list[Order]:
        """What to hand out now. The last stages first: they make room for the others."""
        given = []
        for stage in reversed(range(len(self._idle))):
            while self._idle[stage] and self._room_behind(stage) and (taken := self._take(stage)):
                order = Order(self._idle[stage].popleft(), *taken)
                self._busy[order.worker] = order
                given.append(order)
        return given

    def done(self, worker: int) -> None:
        """That worker has finished what it was given. Raises KeyError where it was given nothing."""
        order = self._busy.pop(worker)
        stage = self._stage_of[worker]
        self._idle[stage].append(worker)
        if stage < len(self._queues):
            self._queues[stage].append(order)
            self.longest[stage] = max(self.longest[stage], len(self._queues[stage]))
        else:
            self._free.append(order.slot)
            self._left -= 1

    def _room_behind(self, stage: int) -> bool:
        if stage == len(self._queues):
            return True
        coming = sum(self._stage_of[worker] == stage for worker in self._busy)
        return len(self._queues[stage]) + coming < self._capacity

    def _take(self, stage: int) -> tuple[int, int] | None:
        if stage > 0:
            if not self._queues[stage - 1]:
                return None
            order = self._queues[stage - 1].popleft()
            return order.item, order.slot
        if not self._waiting:
            return None
        return self._waiting.popleft(), self._free.popleft()
