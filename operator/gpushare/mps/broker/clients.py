"""Which processes of each container have attached, and which containers stalled. In memory alone.

`processes` of a grant is held here: a process counts from its attach to its end, whatever it does with its contexts;
and after its end as long as somebody holds a socket to the server that it was passed: whoever speaks there is a client
that never attached.
"""

import math
from collections.abc import Callable, Iterable

from gpushare.mps.identity import Container, Identity

FIRST_PENALTY_SECONDS = 4.0
LONGEST_PENALTY_SECONDS = 64.0
_MOST_DOUBLINGS = 8


class AttachedClients:
    """The attached clients of one GPU. `started`: when a process started, in ticks; None: it has ended; OSError: that
    is not known, and then it counts as living. `clock`: seconds. `are_open`: which of these sockets (inodes) somebody
    holds.
    """

    def __init__(
        self,
        started: Callable[[int], int | None],
        clock: Callable[[], float],
        are_open: Callable[[Iterable[int]], frozenset[int]],
    ) -> None:
        self._started = started
        self._clock = clock
        self._are_open = are_open
        self._attached: dict[Container, dict[Identity, frozenset[int]]] = {}
        """The sockets that each process was passed, as far as they may be open."""
        self._ended: set[Identity] = set()
        """Of these processes those that were found to have ended."""
        self._stalls: dict[Container, tuple[int, float]] = {}
        """How often a container's processes stalled, and until when it may not attach."""

    def restore(self, running: Iterable[tuple[Container, int]]) -> None:
        """The clients that the daemon lists: those of an earlier broker. OSError: when one started is not known."""
        for container, pid in running:
            started = self._started(pid)
            if started is not None:
                self.add(container, (pid, started))

    def add(self, container: Container, process: Identity) -> bool:
        """The process attaches. True: it is a new one of its container."""
        known = self._attached.setdefault(container, {})
        new = process not in known
        known.setdefault(process, frozenset())
        return new

    def passed(self, container: Container, process: Identity, inode: int) -> None:
        """The process, which was added, has got a socket to the server."""
        known = self._attached.setdefault(container, {})
        known[process] = known.get(process, frozenset()) | {inode}

    def remove(self, container: Container, process: Identity) -> None:
        """The process's attach failed."""
        self._attached.get(container, {}).pop(process, None)
        self._ended.discard(process)
        self._drop_empty(container)

    def attached(self, container: Container) -> frozenset[Identity]:
        """The processes of the container that count."""
        return self._counting(container)

    def container_of(self, process: Identity) -> Container | None:
        """The container of a process that attached."""
        return next((container for container, known in self._attached.items() if process in known), None)

    def containers_of(self, pid: int) -> frozenset[Container]:
        """Those of the processes of this PID that attached and are not known to have ended."""
        return frozenset(
            container
            for container, known in self._attached.items()
            for process in known
            if process[0] == pid and process not in self._ended
        )

    def has_attached(self, process: Identity) -> bool:
        return any(process in known for known in self._attached.values())

    def living(self) -> dict[int, int]:
        """When each process that attached and lives started, in ticks, by PID."""
        return {
            pid: started for known in self._attached.values() for pid, started in known if self._lives(pid, started)
        }

    def stalled(self, container: Container) -> None:
        """A process of the container held everybody up: it waits for 4 s, and twice as long each time."""
        count = self._stalls.get(container, (0, 0.0))[0] + 1
        seconds = min(FIRST_PENALTY_SECONDS * 2.0 ** min(count - 1, _MOST_DOUBLINGS), LONGEST_PENALTY_SECONDS)
        self._stalls[container] = count, self._clock() + seconds

    def penalty(self, container: Container) -> float:
        """Seconds for which the container may not attach; 0: it may."""
        _, until = self._stalls.get(container, (0, -math.inf))
        return max(0.0, until - self._clock())

    def forget_ended(self) -> None:
        """Processes that count no more, and penalties that are long over."""
        for container in list(self._attached):
            self._counting(container)
        now = self._clock()
        self._stalls = {
            container: stalls for container, stalls in self._stalls.items() if now - stalls[1] < LONGEST_PENALTY_SECONDS
        }

    def _counting(self, container: Container) -> frozenset[Identity]:
        """Forgets the others. Open sockets are asked for only where a process has ended."""
        known = self._attached.get(container, {})
        ended = {process: sockets for process, sockets in known.items() if not self._lives(*process)}
        left = self._are_open(frozenset().union(*ended.values())) if any(ended.values()) else frozenset()
        for process, sockets in ended.items():
            known[process] = sockets & left
            if known[process]:
                self._ended.add(process)
            else:
                del known[process]
                self._ended.discard(process)
        self._drop_empty(container)
        return frozenset(known)

    def _lives(self, pid: int, started: int) -> bool:
        try:
            return self._started(pid) == started
        except OSError:
            return True

    def _drop_empty(self, container: Container) -> None:
        if not self._attached.get(container, True):
            del self._attached[container]
