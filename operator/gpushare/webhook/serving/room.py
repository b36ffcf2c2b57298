"""A bound on the memory of what is worked on at the same time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SMALL = 256 * 1024


class Room:
    """`most`: bytes. What is small never waits: how many connections there are bounds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._left = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Waits until there is room for `size` bytes; what needs more than there is gets all of it."""
        size = min(size, self._most) if size > SMALL else 0
        while self._taken + size > self._most:
            self._left.clear()
            await self._left.wait()
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._left.set()
