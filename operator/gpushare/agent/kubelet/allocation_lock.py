"""Keeps our readings of who holds which device and the kubelet's allocations apart.

Between choosing a device and writing down who has it, which is when it asks us, the kubelet forgets its choice if it is
asked for the list of holders just after some other pod has ended, and then gives the same device to the next container
too (kubernetes/kubernetes#137534, open as of 1.37). Two containers with one slot are one more on a GPU than the share
has, and nobody sees it by counting slots. We read at every allocation, so it must be us who wait.

Guarantees: none of our readings begins while an allocation that we know of is under way, and while one of them is no
device is chosen, unless it takes longer than WAIT_SECONDS. Does not guarantee that nobody else reads then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gpushare.agent.kubelet.holdings import HeldDevice
from gpushare.agent.kubelet.reader import PodResourcesSource

WAIT_SECONDS = 0.25
"""How long a device's choice waits for a reading, which takes some 10 ms: the kubelet starts no other pod meanwhile."""
CHOSEN_SECONDS = 1.0
"""The kubelet asks Allocate for what it has chosen at once; after so long it has given up."""
WRITTEN_SECONDS = 0.25
"""After the answer of Allocate the kubelet writes it down at once; this has room for a busy node."""


class AllocationLock:
    """One for all plugins: the kubelet makes one allocation at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._under_way_until = 0.0
        self._changed = asyncio.Event()
        self._nobody_reads = asyncio.Event()
        self._nobody_reads.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        self._nobody_reads.clear()
        try:
            while (left := self._under_way_until - self._clock()) > 0:
                self._changed.clear()
                await _wait(self._changed, left)
            yield
        finally:
            self._nobody_reads.set()

    async def choosing(self) -> None:
        """Before the kubelet is told what to choose. The allocation before is written down, as it makes another."""
        self._under_way(0.0)
        await _wait(self._nobody_reads, WAIT_SECONDS)
        self._under_way(CHOSEN_SECONDS)

    def allocated(self) -> None:
        """When Allocate is answered."""
        self._under_way(WRITTEN_SECONDS)

    def _under_way(self, seconds: float) -> None:
        self._under_way_until = self._clock() + seconds
        self._changed.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class LockedPodResources:
    """The kubelet's word, asked for holders only between allocations."""

    def __init__(self, source: PodResourcesSource, turns: AllocationLock) -> None:
        self._source = source
        self._turns = turns

    async def held(self) -> list[HeldDevice]:
        async with self._turns.reading():
            return await self._source.held()

    async def allocatable(self) -> set[tuple[str, str]]:
        return await self._source.allocatable()
