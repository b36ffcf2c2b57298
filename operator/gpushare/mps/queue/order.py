"""In which order the containers that wait for a place on a GPU get one. Pure.

A class goes before those below it; within a class the namespace that has the fewest places is next, and within that the
container that has waited longest. Each EVERY-th hand-over goes to whoever has waited longest of all, whatever its class
and namespace. So a container before whom n others came waits for EVERY * (n + 1) hand-overs at the most.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from gpushare.api.client_class import ClientClass
from gpushare.mps.identity import Container

EVERY = 4
_Line = tuple[int, str]
"""(rank, namespace)."""
_Key = tuple[int, int, tuple[float, Container], str]
"""(rank, the namespace's places, the oldest one's age, namespace): the least is next."""
_RANKS = {ClientClass.PROTECTED.value: 0, ClientClass.NORMAL.value: 1, ClientClass.BEST_EFFORT.value: 2}


@dataclass(frozen=True, slots=True)
class Waiter:
    """`rank`: of its class; 0 is served first. `since`: CLOCK_BOOTTIME seconds."""

    container: Container
    namespace: str
    rank: int
    since: float

    @property
    def age(self) -> tuple[float, Container]:
        """Less is older; no two are the same."""
        return self.since, self.container


def rank(client_class: str) -> int:
    """That of Normal for a class that only another release knows."""
    return _RANKS.get(client_class, 1)


def order(waiters: Collection[Waiter], held: Mapping[str, int], handed_over: int) -> list[Waiter]:
    """The waiters, who is next first, as they get places if nobody else comes and no place falls free but for them.

    `held`: how many places each namespace has. `handed_over`: how many places were, before this one.
    """
    lines, picked = _Lines(waiters, held), list[Waiter]()
    while len(picked) < len(waiters):
        oldest = (handed_over + len(picked) + 1) % EVERY == 0
        picked.append(lines.take(lines.oldest() if oldest else lines.first()))
    return picked


class _Lines:
    """Those who wait, in lines of one class and namespace."""

    def __init__(self, waiters: Iterable[Waiter], held: Mapping[str, int]) -> None:
        self._held, self._taken = Counter(held), set[Container]()
        self._by_age = deque(sorted(waiters, key=lambda waiter: waiter.age))
        self._lines: dict[_Line, deque[Waiter]] = defaultdict(deque)
        for waiter in self._by_age:
            self._lines[waiter.rank, waiter.namespace].append(waiter)
        self._heads = [self._key(line) for line in self._lines]
        heapify(self._heads)

    def _key(self, line: _Line) -> _Key:
        rank, namespace = line
        return rank, self._held[namespace], self._lines[line][0].age, namespace

    def first(self) -> Waiter:
        """Of the line whose turn it is. A line's key only grows: one that is out of date comes to the top too early,
        and is put right there.
        """
        while True:
            rank, _, _, namespace = self._heads[0]
            line = self._lines[rank, namespace]
            self._drop_taken(line)
            if not line:
                heappop(self._heads)
            elif (key := self._key((rank, namespace))) != self._heads[0]:
                heapreplace(self._heads, key)
            else:
                return line[0]

    def oldest(self) -> Waiter:
        self._drop_taken(self._by_age)
        return self._by_age[0]

    def _drop_taken(self, line: deque[Waiter]) -> None:
        while line and line[0].container in self._taken:
            line.popleft()

    def take(self, waiter: Waiter) -> Waiter:
        self._taken.add(waiter.container)
        self._held[waiter.namespace] += 1
        return waiter
