"""A time limit that holds in a task which was cancelled, too: that of a shutdown.

`asyncio.timeout` does not with Python 3.11.0 to 3.11.2 (Debian 12: 3.11.2): at the end of the time such a task gets a
CancelledError and no TimeoutError, so that it skips whatever was to follow. In other places `asyncio.timeout` will do.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns or raises what `work` does. TimeoutError: it took longer, and was cancelled. Await it at once."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return await asyncio.create_task(limited())  # nobody has cancelled this one
