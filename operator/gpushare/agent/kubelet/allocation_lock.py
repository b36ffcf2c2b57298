"""Keeps our readings of who holds which device and the kubelet's allocations apart.

The kubelet chooses a device, asks us (Allocate), and records the holder. If somebody asks it for the list of holders in
between, just after another pod has ended, it forgets its choice and gives the same device to the next container too
(kubernetes/kubernetes#137534, open as of 1.37). Two containers with one slot put one client more on a GPU than the
share has, and no count of slots shows it. We read at every allocation, so we have to wait.

Guarantees: none of our readings begins while an allocation that we know of is under way, and the kubelet chooses no
device during a reading that takes no longer than WAIT_SECONDS. Does not guarantee that nobody else reads then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gpushare.agent.podresources.holdings import HeldDevice
from gpushare.agent.podresources.reader import PodResourcesSource

WAIT_SECONDS = 0.25
"""How long a device's choice waits for a reading, which takes some 10 ms: the kubelet starts no other pod meanwhile."""
CHOSEN_SECONDS = 1.0
"""The kubelet asks Allocate for what it has chosen at once; after so long it has given up."""
RECORDED_SECONDS = 0.25
"""After the answer of Allocate the kubelet records the holder at once; this has room for a busy node."""


class AllocationLock:
    """One for all plugins: the kubelet makes one allocation at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._under_way_until = 0.0
        self._changed = asyncio.Event()
        self._no_reading = asyncio.Event()
        self._no_reading.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Waits until no allocation is under way; choices wait until the block has ended."""
        self._no_reading.clear()
        try:
            while (left := self._under_way_until - self._clock()) > 0:
                self._changed.clear()
                await _wait(self._changed, left)
            yield
        finally:
            self._no_reading.set()

    async def choosing(self) -> None:
        """Call before answering GetPreferredAllocation: a new request means that the previous one was recorded."""
        self._under_way(0.0)
        await _wait(self._no_reading, WAIT_SECONDS)
        self._under_way(CHOSEN_SECONDS)

    def allocated(self) -> None:
        """Call before answering Allocate."""
        self._under_way(RECORDED_SECONDS)

    def _under_way(self, seconds: float) -> None:
        self._under_way_until = self._clock() + seconds
        self._changed.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class LockedPodResources:
    """The kubelet's PodResources, asked for holders only between allocations."""

    def __init__(self, source: PodResourcesSource, lock: AllocationLock) -> None:
        self._source = source
        self._lock = lock

    async def held(self) -> list[HeldDevice]:
        async with self._lock.reading():
            return await self._source.held()

    async def allocatable(self) -> set[tuple[str, str]]:
        return await self._source.allocatable()
