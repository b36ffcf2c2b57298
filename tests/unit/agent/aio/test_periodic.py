"""A loop turns at its interval or when it is woken, and survives an OSError alone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gpushare.agent.aio import periodic
from gpushare.agent.aio.periodic import Loop

NEVER = 3600.0


class Work:
    """Counts its turns; `failure` is raised by the next one."""

    def __init__(self) -> None:
        self.turns = 0
        self.failure: Exception | None = None
        self._turned = asyncio.Condition()

    async def __call__(self) -> None:
        async with self._turned:
            self.turns += 1
            self._turned.notify_all()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    async def reached(self, turns: int) -> None:
        async with asyncio.timeout(8), self._turned:
            await self._turned.wait_for(lambda: self.turns >= turns)


@asynccontextmanager
async def running(loop: Loop, record: Callable[[str, float], None] | None = None) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(periodic.run(loop, record))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_turns_at_once_and_again_after_its_interval() -> None:
    work = Work()
    async with running(Loop("work", work, 0.01)):
        await work.reached(3)


async def test_being_woken_it_turns_before_its_interval_is_over() -> None:
    work, wake = Work(), asyncio.Event()
    async with running(Loop("work", work, NEVER, wake)):
        await work.reached(1)
        wake.set()
        await work.reached(2)
    assert work.turns == 2


async def test_a_wake_up_during_a_turn_starts_another_one() -> None:
    wake, turns = asyncio.Event(), Work()

    async def work() -> None:
        await turns()
        if turns.turns == 1:
            wake.set()

    async with running(Loop("work", work, NEVER, wake)):
        await turns.reached(2)


async def test_only_a_wake_up_waits_for_others_like_it() -> None:
    work = Work()
    async with running(Loop("work", work, 0.01, debounce=NEVER)):
        await work.reached(3)


async def test_an_oserror_is_logged_and_the_next_turn_comes(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.failure = OSError("disk full")
    with caplog.at_level(logging.ERROR):
        async with running(Loop("work", work, 0.01)):
            await work.reached(2)
    assert [record.getMessage() for record in caplog.records] == ["work failed, trying again: disk full"]


async def test_any_other_error_ends_it() -> None:
    work = Work()
    work.failure = KeyError("a bug")
    with pytest.raises(KeyError, match="a bug"):
        async with asyncio.timeout(8):
            await periodic.run(Loop("work", work, 0.01))


@pytest.mark.parametrize(("timed", "names"), [(True, {"work"}), (False, set())])
async def test_turns_are_recorded_by_name_where_they_are_timed(timed: bool, names: set[str]) -> None:
    work, recorded = Work(), set[str]()
    async with running(Loop("work", work, 0.01, timed=timed), lambda name, _: recorded.add(name)):
        await work.reached(3)
    assert recorded == names


async def test_a_loop_without_an_interval_runs_once_by_itself() -> None:
    work = Work()
    await periodic.run(Loop("work", work))
    assert work.turns == 1
