"""Gives free memory of the C library's heap back to the system, which it does by itself at the heap's end alone."""

import asyncio
import ctypes


async def trim() -> None:
    """Does nothing with a C library other than glibc."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


async def keep_trimming(seconds: float) -> None:
    """Trims every `seconds`, until it is cancelled."""
    while True:
        await asyncio.sleep(seconds)
        await trim()
