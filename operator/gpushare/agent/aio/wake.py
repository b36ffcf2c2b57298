"""A loop's alarm clock: it goes off when poked or when the time is over. Pokes in between are one."""

import asyncio
from contextlib import suppress


class Wake:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def poke(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
