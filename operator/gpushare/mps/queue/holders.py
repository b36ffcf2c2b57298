"""Which containers have a place on one GPU. Pure, but for asking whether a process lives.

A container has its place while the MPS server lists one of its processes. Until that is so, and for a short time after,
it has it for a process that was given it, or was let through for a context, and that lives.

Guarantees: no place is taken from a container whose process is listed, also where the GPU has fewer places than it had,
nor from one that lives and is missing in the list once.
Does not guarantee that the list is true (see `mps.broker.listed`), nor that nobody is listed without a place: who is,
while none is free, is told (`listed`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.mps.identity import Container, Identity

UNUSED_SECONDS = 30.0
"""A place that was given waits so long for the process' context, and one that was let through for the server's list."""
SETTLED_SECONDS = 5.0
"""So long after it was let through, the list is right about a container that it shows: under protocol v3 it is some
seconds old, and may show a context that has ended since."""
RESTORED: Identity = (0, 0)
"""No process: who held a place by what an earlier broker wrote."""


@dataclass(slots=True)
class _Use:
    """A process on its way to a context. `attaching`: its connections of which one is asked for now. `until`: its place
    waits for it at least so long.
    """

    attaching: int = 0
    until: float = 0.0


@dataclass(slots=True)
class _Holder:
    namespace: str
    since: float
    listed: frozenset[Identity] = frozenset()
    """Its processes in the list; those of before, where it is missing there for the first time."""
    missing: bool = False
    uses: dict[Identity, _Use] = field(default_factory=dict)


class PlaceHolders:
    """`clock`: CLOCK_BOOTTIME seconds. `lives`: whether this process does."""

    def __init__(self, clock: Callable[[], float], lives: Callable[[Identity], bool]) -> None:
        self.limit = 0
        """How many places the GPU has."""
        self._clock = clock
        self._lives = lives
        self._held: dict[Container, _Holder] = {}
        self._suspects: frozenset[Container] = frozenset()

    @property
    def free(self) -> int:
        return max(0, self.limit - len(self._held))

    def has(self, container: Container) -> bool:
        return container in self._held

    def since(self) -> dict[Container, float]:
        """Since when each one has its place."""
        return {container: holder.since for container, holder in self._held.items()}

    def namespaces(self) -> Counter[str]:
        """How many places each namespace has."""
        return Counter(holder.namespace for holder in self._held.values())

    def give(self, container: Container, namespace: str, processes: Iterable[Identity]) -> None:
        """The container has a place from now on; `processes` waited for it."""
        now = self._clock()
        holder = self._held.setdefault(container, _Holder(namespace, now))
        for process in processes:
            holder.uses.setdefault(process, _Use()).until = now + UNUSED_SECONDS

    def restore(self, container: Container, namespace: str, since: float, seconds: float) -> None:
        """It had a place at an earlier broker, and keeps it for `seconds` if it is not listed."""
        holder = self._held.setdefault(container, _Holder(namespace, since))
        holder.since = since
        holder.uses[RESTORED] = _Use(until=self._clock() + seconds)

    def attaching(self, container: Container, process: Identity) -> None:
        """A process of a container with a place asks for a context; until `attached` or `failed`."""
        self._use(container, process).attaching += 1

    def attached(self, container: Container, process: Identity) -> None:
        """It was let through, and is listed soon."""
        self._use(container, process).until = self._clock() + UNUSED_SECONDS
        self.failed(container, process)

    def failed(self, container: Container, process: Identity) -> None:
        """It was not."""
        use = self._use(container, process)
        use.attaching = max(0, use.attaching - 1)

    def _use(self, container: Container, process: Identity) -> _Use:
        holder = self._held.get(container)
        return _Use() if holder is None else holder.uses.setdefault(process, _Use())

    def listed(
        self,
        listed: Mapping[Identity, Container],
        namespace: Callable[[Container], str],
        *,
        adopt: bool,
        take_free: bool,
    ) -> frozenset[Container]:
        """Takes note of whom the server lists: places that nobody uses are free, and a container that is listed and has
        none takes one of those, if `take_free`. `adopt`: whether one is free or not, since it had one before this
        broker counted. Returns who is listed in two calls, one after the other, and has no place.
        """
        processes: dict[Container, set[Identity]] = {}
        for process, container in listed.items():
            processes.setdefault(container, set()).add(process)
        for container, holder in self._held.items():
            self._note(holder, frozenset(processes.get(container, ())))
        self._forget_unused()
        without = [container for container in processes if container not in self._held]
        for container in without if adopt else without[: self.free if take_free else 0]:
            self._held[container] = _Holder(namespace(container), self._clock(), frozenset(processes[container]))
        suspects = frozenset(container for container in without if container not in self._held)
        before, self._suspects = self._suspects, suspects
        return suspects & before

    def _note(self, holder: _Holder, listed: frozenset[Identity]) -> None:
        """One that was listed and lives is to be missing twice: a server that recovers may name nobody for a moment."""
        if not listed and not holder.missing and any(self._lives(process) for process in holder.listed):
            holder.missing = True
        else:
            holder.listed, holder.missing = listed, False

    def _forget_unused(self) -> None:
        now = self._clock()
        for container, holder in list(self._held.items()):
            holder.uses = {process: use for process, use in holder.uses.items() if self._counts(process, use, now)}
            if holder.listed:
                for use in holder.uses.values():
                    if now >= use.until - UNUSED_SECONDS + SETTLED_SECONDS:
                        use.until = 0.0
            elif not holder.uses:
                del self._held[container]

    def _counts(self, process: Identity, use: _Use, now: float) -> bool:
        return (use.attaching > 0 or now < use.until) and (process == RESTORED or self._lives(process))
