"""Items that pass through stages, each stage a pool of workers, with bounded queues between the stages.

Guarantees: a stage takes an item only if the queue behind it has room for the result. So no queue exceeds its capacity,
no worker waits with a finished item, and `slots` buffers are enough for everything in flight. `Flow` is pure;
`dispatch` drives a team by it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare_workload.processes.team import Team


@dataclass(frozen=True, slots=True)
class StageTask:
    """One item for one worker."""

    worker: int
    """Counted through all stages, beginning with the first stage."""
    item: int
    slot: int
    """The buffer that the item keeps until it leaves the last stage."""


class Flow:
    """Items 0 … `items` - 1 enter the first stage in that order. `stages` are numbers of workers."""

    def __init__(self, items: int, stages: Sequence[int], capacity: int = 1) -> None:
        """`capacity` is that of each queue. Raises ValueError for a stage without workers or a queue without room."""
        if items < 0 or capacity < 1 or not stages or min(stages) < 1:
            raise ValueError(
                f"{items} items, stages of {list(stages)} workers, queues of {capacity}: must be at least 1"
            )
        self._capacity = capacity
        self._waiting = deque(range(items))
        self._queues: list[deque[StageTask]] = [deque() for _ in stages[1:]]
        self._busy: dict[int, StageTask] = {}
        self._stage_of = [stage for stage, workers in enumerate(stages) for _ in range(workers)]
        self._idle: list[deque[int]] = [deque() for _ in stages]
        for worker, stage in enumerate(self._stage_of):
            self._idle[stage].append(worker)
        self.slots = capacity * len(self._queues) + stages[-1]
        """Buffers that are enough for everything in flight."""
        self._free = deque(range(self.slots))
        self._left = items
        self.longest = [0] * len(self._queues)
        """The most items that waited in each queue."""

    @property
    def finished(self) -> bool:
        return self._left == 0

    def next_tasks(self) -> list[StageTask]:
        """The tasks to hand out now. The last stages come first, since they make room for the others."""
        given = []
        for stage in reversed(range(len(self._idle))):
            while self._idle[stage] and self._room_behind(stage) and (taken := self._take(stage)):
                task = StageTask(self._idle[stage].popleft(), *taken)
                self._busy[task.worker] = task
                given.append(task)
        return given

    def done(self, worker: int) -> None:
        """Call when the worker has finished its task. Raises KeyError for a worker without a task."""
        task = self._busy.pop(worker)
        stage = self._stage_of[worker]
        self._idle[stage].append(worker)
        if stage < len(self._queues):
            self._queues[stage].append(task)
            self.longest[stage] = max(self.longest[stage], len(self._queues[stage]))
        else:
            self._free.append(task.slot)
            self._left -= 1

    def _room_behind(self, stage: int) -> bool:
        if stage == len(self._queues):
            return True
        coming = sum(self._stage_of[worker] == stage for worker in self._busy)
        return len(self._queues[stage]) + coming < self._capacity

    def _take(self, stage: int) -> tuple[int, int] | None:
        """(item, slot) of the next item for that stage; None without one."""
        if stage > 0:
            if not self._queues[stage - 1]:
                return None
            task = self._queues[stage - 1].popleft()
            return task.item, task.slot
        if not self._waiting:
            return None
        return self._waiting.popleft(), self._free.popleft()


def dispatch(team: Team, flow: Flow, seconds: float) -> None:
    """Sends each task to its worker, which takes it from Worker.tasks(), until all items have passed all stages.

    The team's workers are the flow's, by index. Raises WorkerError when no worker finishes a task for `seconds`.
    """
    while not flow.finished:
        for task in flow.next_tasks():
            team.send(task.worker, task)
        worker, _ = team.receive(seconds)
        flow.done(worker)
    for worker in range(len(team)):
        team.send(worker, None)
