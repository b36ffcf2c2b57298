"""Who may hold how many of the broker's connections, and who gives way when it has no room. Pure.

A pod is the outermost that a process' cgroup names: a tenant makes as many containers and cgroups as it likes, and they
count as one.

Guarantees
- What the processes that a pod was granted need, for however long they wait, is never taken away to make room.
- Pods without a part of the GPU hold a quarter of the room at the most, and give way to those with one.
- Else whoever holds most beyond its need gives way, and its newest connection goes: the others have waited longer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MAX_CONNECTIONS = 2048
MAX_WITHOUT_PART = 512
"""Of all pods together that hold no part of the GPU; some of them may, as soon as the agent says so."""
MAX_OF_POD = 64
"""Of a pod with a part of the GPU; more where its processes need more."""
MAX_OF_POD_WITHOUT_PART = 16
CONNECTIONS_OF_PROCESS = 2
"""A CUDA process attaches for itself and for its context. Later it may wait at one of them for hours."""
CONNECTIONS_OF_WAITER = 1
"""One more where the GPU has a queue: a process waits for its place there, for hours, too."""
SPARE_CONNECTIONS = 16
"""For processes that only look, and those that are refused."""
CONNECTS_PER_SECOND = 500.0
"""Of one process, on average; a program makes a context in a millisecond at the least."""
CONNECTS_AT_ONCE = 1000.0
MAX_PROCESSES_TIMED = 1024


@dataclass(frozen=True, slots=True)
class PodConnections:
    """A pod's connections, and how many its granted processes need; 0: it holds no part of the GPU."""

    connections: int = 0
    needed: int = 0

    @property
    def most(self) -> int:
        return max(MAX_OF_POD, self.needed + SPARE_CONNECTIONS) if self.needed else MAX_OF_POD_WITHOUT_PART

    @property
    def excess(self) -> int:
        return self.connections - self.needed


@dataclass(frozen=True, slots=True)
class HasRoom:
    """`instead`: the pod whose newest connection goes; empty: nobody's."""

    instead: str = ""


@dataclass(frozen=True, slots=True)
class NoRoom:
    why: str


NOBODY = PodConnections()


def needed(processes: int, *, waits: bool = False) -> int:
    """The connections of so many granted processes. `waits`: they may have to wait for a place."""
    return processes * (CONNECTIONS_OF_PROCESS + (CONNECTIONS_OF_WAITER if waits else 0))


def room_for(pod: str, holders: Mapping[str, PodConnections], room: int = MAX_CONNECTIONS) -> HasRoom | NoRoom:
    """Whether there is room for one more connection of `pod`. `holders`: every pod with connections, or a part.
    `room`: for the connections of all.
    """
    mine = holders.get(pod, NOBODY)
    if mine.connections >= mine.most:
        return NoRoom(f"its pod holds {mine.connections} connections, and no more than {mine.most} are taken of it")
    without_part = {uid: holder for uid, holder in holders.items() if not holder.needed}
    unpaid = sum(holder.connections for holder in without_part.values())
    if not mine.needed and unpaid >= MAX_WITHOUT_PART:
        return _in_place_of(without_part, mine.excess + 1)
    if sum(holder.connections for holder in holders.values()) < room:
        return HasRoom()
    if mine.needed and unpaid:
        return _in_place_of(without_part, 0)
    return _in_place_of(holders if mine.needed else without_part, max(mine.excess + 1, 0))


def _in_place_of(holders: Mapping[str, PodConnections], excess: int) -> HasRoom | NoRoom:
    """In the place of who has most beyond its need, if that is more than the `excess` of who comes."""
    heaviest = max(holders, key=lambda uid: holders[uid].excess, default="")
    if holders.get(heaviest, NOBODY).excess <= excess:
        return NoRoom("the broker has no room for more connections, and nobody holds more of them than its pod")
    return HasRoom(heaviest)


class ConnectRates:
    """How fast processes connect, by PID: known before anything else of them is read."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}
        """The connects that each PID has left, and when that was, in seconds."""

    def exceeds(self, pid: int, now: float) -> bool:
        """Counts one connect of the process, and tells whether it is one too many."""
        left, at = self._left.pop(pid, (CONNECTS_AT_ONCE, now))
        left = min(CONNECTS_AT_ONCE, left + (now - at) * CONNECTS_PER_SECOND)
        if len(self._left) >= MAX_PROCESSES_TIMED:
            del self._left[next(iter(self._left))]
        self._left[pid] = (left - 1 if left >= 1 else left, now)
        return left < 1
