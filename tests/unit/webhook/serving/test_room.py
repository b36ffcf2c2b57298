"""Room for what is worked on: large objects wait for each other, and small ones for nobody."""

import asyncio

from gpushare.webhook.serving.room import SMALL, Room

LARGE = 10 * SMALL


async def holds(room: Room, size: int, go_on: asyncio.Event) -> None:
    async with room.taken(size):
        await go_on.wait()


async def test_a_large_request_waits_for_memory_and_a_small_one_does_not() -> None:
    room, first_ends = Room(LARGE), asyncio.Event()
    first = asyncio.create_task(holds(room, LARGE, first_ends))
    await asyncio.sleep(0)
    entered = asyncio.Event()

    async def second() -> None:
        async with room.taken(SMALL + 1):
            entered.set()

    waiting = asyncio.create_task(second())
    async with asyncio.timeout(5):
        async with room.taken(SMALL):
            assert not entered.is_set()
        first_ends.set()
        await asyncio.gather(first, waiting)
    assert entered.is_set()


async def test_a_request_above_all_memory_gets_all_and_returns_it() -> None:
    room, ends = Room(LARGE), asyncio.Event()
    first = asyncio.create_task(holds(room, 2 * LARGE, ends))
    await asyncio.sleep(0)
    gives_up = asyncio.create_task(holds(room, LARGE, ends))
    await asyncio.sleep(0)
    gives_up.cancel()
    ends.set()
    await asyncio.gather(first, gives_up, return_exceptions=True)
    async with asyncio.timeout(5), room.taken(2 * LARGE):
        pass
