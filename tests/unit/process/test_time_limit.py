"""A time limit that a shutdown can rely on."""

import asyncio
from typing import Any

import pytest

from gpushare.process.event_loop import within


async def answer() -> int:
    return 42


async def fail() -> None:
    raise LookupError("nobody")


def hang(log: list[str]) -> Any:
    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    return hangs()


async def test_what_ends_in_time_gives_its_result_or_its_error() -> None:
    assert await within(10, answer()) == 42
    with pytest.raises(LookupError):
        await within(10, fail())


async def test_what_takes_longer_is_cancelled() -> None:
    log: list[str] = []
    with pytest.raises(TimeoutError):
        await within(0.01, hang(log))
    assert log == ["ended"]


async def test_a_task_that_is_being_cancelled_goes_on_after_the_limit() -> None:
    log: list[str] = []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(TimeoutError):
                await within(0.01, hang(log))
            log.append("closed")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["ended", "closed"]


async def test_who_is_cancelled_while_it_waits_ends_what_it_waits_for() -> None:
    log: list[str] = []
    task = asyncio.create_task(within(10, hang(log)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["ended"]


async def test_what_ends_all_the_same_keeps_its_result_and_its_error() -> None:
    async def ends(error: Exception | None) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return 42

    assert await within(0.01, ends(None)) == 42
    with pytest.raises(LookupError):
        await within(0.01, ends(LookupError("nobody")))


async def test_the_work_does_not_see_that_its_caller_was_cancelled() -> None:
    seen: list[int] = []

    async def cancelling() -> int:
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(await within(10, cancelling()))

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [0]
