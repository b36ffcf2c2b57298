"""Calls into a driver that may never come back."""

import asyncio
import threading

import pytest

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from tests.unit.few_threads import no_threads


async def test_an_answer_and_an_error_come_through() -> None:
    caller = BlockingCaller("gpu", seconds=5)
    assert await caller.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await caller.call(divmod, 1, 0)
    assert await caller.call(max, 1, 2) == 2


async def test_a_hanging_call_is_given_up_and_later_ones_are_refused_at_once() -> None:
    release = threading.Event()
    caller = BlockingCaller("gpu", seconds=1)
    with pytest.raises(HungError, match="no answer"):
        await caller.call(release.wait)
    with pytest.raises(HungError, match="still hangs"):
        caller.call(int).send(None)  # refused before anything is waited for
    release.set()


async def test_a_call_without_a_thread_is_refused_and_the_next_is_made() -> None:
    caller = BlockingCaller("gpu", seconds=5)
    with no_threads(), pytest.raises(HungError, match="no thread for the call"):
        await caller.call(int)
    assert await caller.call(int) == 0


async def test_once_the_hanging_call_has_returned_the_lane_is_free_again() -> None:
    release = threading.Event()
    caller = BlockingCaller("gpu", seconds=0.05)
    with pytest.raises(HungError):
        await caller.call(release.wait)
    release.set()
    for _ in range(100):
        try:
            assert await caller.call(int) == 0
            return
        except HungError:
            await asyncio.sleep(0.01)
    pytest.fail("the caller stayed blocked")
