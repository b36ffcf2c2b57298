"""Which processes of each container have attached and how often, and which containers stalled. In memory alone.

`processes` of a grant is held here: a process counts from its attach to its end, whatever it does with its contexts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

FIRST_PENALTY_SECONDS = 4.0
LONGEST_PENALTY_SECONDS = 64.0
_MOST_DOUBLINGS = 8

Container = tuple[str, str]
"""(pod's uid, container's name): the same one after a restart, whatever its id."""
Identity = tuple[int, int]
"""(PID, start time in clock ticks since boot)."""


@dataclass(slots=True)
class _Stalls:
    count: int
    until: float


class AttachedClients:
    """The attached clients of one GPU. `started`: when a process started, in ticks; None: it has ended; OSError: that
    is not known, and then it counts as living. `clock`: seconds.
    """

    def __init__(self, started: Callable[[int], int | None], clock: Callable[[], float]) -> None:
        self._started = started
        self._clock = clock
        self._attached: dict[Container, dict[Identity, int]] = {}
        """How often each process has attached."""
        self._stalls: dict[Container, _Stalls] = {}

    def restore(self, arrivals: Iterable[tuple[Container, int]]) -> None:
        """The clients that the daemon lists: those of an earlier broker."""
        for container, pid in arrivals:
            if pid not in self.attached(container):
                self.add(container, pid)

    def add(self, container: Container, pid: int) -> bool:
        """The process attaches. True: it is a new one of its container. OSError: when it started is not known."""
        started = self._started(pid)
        if started is None:
            return False
        known = self._attached.get(container, {})
        before = known.get((pid, started), 0)
        self._attached[container] = {**known, (pid, started): before + 1}
        return before == 0

    def remove(self, container: Container, pid: int) -> None:
        """The process's attach failed."""
        known = self._attached.get(container, {})
        self._keep(container, {identity: times for identity, times in known.items() if identity[0] != pid})

    def attached(self, container: Container) -> dict[int, int]:
        """How often each process of the container that lives has attached, by PID."""
        return {pid: times for (pid, _), times in self._living(container).items()}

    def living(self) -> dict[int, int]:
        """When each process that attached and lives started, in ticks, by PID."""
        return {pid: started for container in self._attached for pid, started in self._living(container)}

    def stalled(self, container: Container) -> None:
        """A process of the container held everybody up: it waits for 4 s, and twice as long each time."""
        before = self._stalls.get(container)
        count = before.count + 1 if before else 1
        seconds = min(FIRST_PENALTY_SECONDS * 2.0 ** min(count - 1, _MOST_DOUBLINGS), LONGEST_PENALTY_SECONDS)
        self._stalls[container] = _Stalls(count, self._clock() + seconds)

    def penalty(self, container: Container) -> float:
        """Seconds for which the container may not attach; 0: it may."""
        stalls = self._stalls.get(container)
        return max(0.0, stalls.until - self._clock()) if stalls else 0.0

    def forget_ended(self) -> None:
        """Containers without a living process, and penalties that are long over."""
        for container in list(self._attached):
            self._keep(container, self._living(container))
        now = self._clock()
        self._stalls = {
            container: stall for container, stall in self._stalls.items() if now - stall.until < LONGEST_PENALTY_SECONDS
        }

    def _living(self, container: Container) -> dict[Identity, int]:
        known = self._attached.get(container, {})
        return {identity: times for identity, times in known.items() if self._lives(identity)}

    def _lives(self, identity: Identity) -> bool:
        try:
            return self._started(identity[0]) == identity[1]
        except OSError:
            return True

    def _keep(self, container: Container, living: dict[Identity, int]) -> None:
        if living:
            self._attached[container] = living
        else:
            self._attached.pop(container, None)
