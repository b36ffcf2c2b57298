"""How long each container kept its GPU busy, by what its processes say of themselves. Pure.

NVML counts the kernels of all MPS clients as the MPS server's, so only a client itself can know. Who wants to be
counted loads the library of workload/busytime; all others have no figure.

Guarantees: a process is never counted as busier than it has been seen. A container's figure never goes back while it
has such a process on the GPU, also when one of several ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.agent.process.processes import Identity, identity
from gpushare.agent.usage.usage import ListedProcess, Reading
from gpushare.api.gpunode import ShareName, Uuid

BusyContainer = tuple[str, str, str, ShareName, Uuid]
"""(namespace, pod, container, share, uuid)."""


LATELY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Busy:
    """Of a container. `seconds`: since it was seen first, the sum over its processes. `lately`: (CLOCK_BOOTTIME,
    seconds) at each reading of the last minute, the oldest first.
    """

    seconds: float
    lately: tuple[tuple[float, float], ...]

    @property
    def ratio(self) -> float | None:
        """Part of the last minute; above 1 if several processes were busy at once. None: seen but once."""
        (began, before), (ended, after) = self.lately[0], self.lately[-1]
        return (after - before) / (ended - began) if ended > began else None


@dataclass(frozen=True, slots=True)
class _Counted:
    """A process. `first_at`, `first`: when it was seen first, and what it said then. `seconds`: counted since."""

    first_at: float
    first: float
    seconds: float = 0.0


class BusyTimes:
    """Follows the readings. `found`: each container with a process that says how busy it is."""

    def __init__(self) -> None:
        self.found: dict[BusyContainer, Busy] = {}
        self._processes: dict[Identity, _Counted] = {}

    def update(self, readings: Mapping[Uuid, Reading]) -> None:
        """`readings`: the latest of each GPU."""
        taken_at: dict[BusyContainer, float] = {}
        seconds: dict[BusyContainer, float] = {}
        counted: dict[Identity, _Counted] = {}
        for reading in readings.values():
            for usage in reading.usages:
                says = [process for process in usage.processes if process.busy_seconds is not None]
                if usage.pod and says:
                    where = (usage.namespace, usage.pod, usage.container, usage.share, usage.uuid)
                    taken_at[where] = reading.taken_at
                    seconds[where] = seconds.get(where, 0.0) + self._count(says, reading.taken_at, counted)
        self.found = {where: self._continued(where, taken_at[where], more) for where, more in seconds.items()}
        self._processes = counted

    def _continued(self, where: BusyContainer, taken_at: float, more: float) -> Busy:
        before = self.found.get(where, Busy(0.0, ()))
        if before.lately and before.lately[-1][0] == taken_at:
            return before
        lately = [it for it in before.lately if it[0] >= taken_at - LATELY_SECONDS]
        return Busy(before.seconds + more, (*lately, (taken_at, before.seconds + more)))

    def _count(self, says: Iterable[ListedProcess], taken_at: float, counted: dict[Identity, _Counted]) -> float:
        """What they have added since the last reading."""
        more = 0.0
        for process in says:
            busy = process.busy_seconds or 0.0
            before = self._processes.get(identity(process)) or _Counted(taken_at, busy)
            credible = min(busy - before.first, taken_at - before.first_at)
            now = _Counted(before.first_at, before.first, max(before.seconds, credible))
            counted[identity(process)] = now
            more += now.seconds - before.seconds
        return more
