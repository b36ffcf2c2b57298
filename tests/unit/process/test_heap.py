"""The heap's free memory goes back to the system."""

import asyncio
import ctypes
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare.process import heap

BLOCK, BLOCKS = 16 * 1024, 2000


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


async def for_a_moment() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await heap.keep_trimming(0.01)


@pytest.mark.parametrize("trim", [heap.trim, for_a_moment], ids=["once", "again and again"])
async def test_what_is_free_below_what_is_used_is_given_back(trim: Callable[[], Awaitable[None]]) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(BLOCK))) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    *freed, used = blocks
    for block in freed:
        libc.free(block)
    before = resident_pages()
    await trim()
    given_back = (before - resident_pages()) * 4096
    libc.free(used)
    assert given_back > BLOCK * BLOCKS / 2
