"""Waiting for everything that was asked of an executor."""

import asyncio
from collections.abc import Iterable


async def settle(scans: Iterable[asyncio.Task[None]] = ()) -> None:
    """The scans are over, and what they asked for is done or was given up. TimeoutError: not within ten seconds."""
    async with asyncio.timeout(10):
        await asyncio.gather(*scans)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("terminations on")))
