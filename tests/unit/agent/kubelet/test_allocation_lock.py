"""Readings of who holds what, and allocations: never at the same time."""

import asyncio

import pytest

from gpushare.agent.kubelet.allocation_lock import (
    CHOSEN_SECONDS,
    RECORDED_SECONDS,
    WAIT_SECONDS,
    AllocationLock,
    LockedPodResources,
)
from gpushare.agent.podresources.holdings import HeldDevice
from tests.unit.clock import Clock

HELD = [HeldDevice("ns", "pod", "app", "gpushare.dev/a", "GPU-0::0")]


class Kubelet:
    """Answers once it may; `asked`: how often it was."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def held(self) -> list[HeldDevice]:
        self.asked += 1
        await self.may_answer.wait()
        return HELD

    async def allocatable(self) -> set[tuple[str, str]]:
        return {("gpushare.dev/a", "GPU-0::0")}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lock(clock: Clock) -> AllocationLock:
    return AllocationLock(clock)


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def source(kubelet: Kubelet, lock: AllocationLock) -> LockedPodResources:
    return LockedPodResources(kubelet, lock)


async def settle() -> None:
    """Gives every task a few chances to go on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_reading_waits_from_the_choice_until_the_allocation_is_recorded(
    kubelet: Kubelet, source: LockedPodResources, lock: AllocationLock, clock: Clock
) -> None:
    await lock.choosing()
    reading = asyncio.create_task(source.held())
    await settle()
    lock.allocated()
    await settle()
    assert kubelet.asked == 0
    clock.now += RECORDED_SECONDS
    async with asyncio.timeout(5):
        assert await reading == HELD


async def test_a_choice_that_comes_to_nothing_is_not_waited_for_for_ever(
    source: LockedPodResources, lock: AllocationLock, clock: Clock
) -> None:
    await lock.choosing()
    clock.now += CHOSEN_SECONDS
    async with asyncio.timeout(5):
        assert await source.held() == HELD


async def test_a_choice_waits_for_the_reading_under_way(
    kubelet: Kubelet, source: LockedPodResources, lock: AllocationLock
) -> None:
    kubelet.may_answer.clear()
    reading = asyncio.create_task(source.held())
    await settle()
    choosing = asyncio.create_task(lock.choosing())
    await settle()
    assert not choosing.done()
    kubelet.may_answer.set()
    async with asyncio.timeout(5):
        await choosing
    assert reading.done()


async def test_a_choice_does_not_wait_long_for_a_kubelet_that_does_not_answer(
    kubelet: Kubelet, source: LockedPodResources, lock: AllocationLock
) -> None:
    kubelet.may_answer.clear()
    reading = asyncio.create_task(source.held())
    await settle()
    async with asyncio.timeout(WAIT_SECONDS + 5):
        await lock.choosing()
    assert not reading.done()
    reading.cancel()


async def test_in_a_burst_of_allocations_a_reading_gets_its_turn_between_two(
    source: LockedPodResources, lock: AllocationLock
) -> None:
    await lock.choosing()
    lock.allocated()
    reading = asyncio.create_task(source.held())
    await settle()
    assert not reading.done()
    await lock.choosing()
    assert reading.done()


async def test_what_can_be_allocated_is_asked_for_at_any_time(source: LockedPodResources, lock: AllocationLock) -> None:
    await lock.choosing()
    assert await source.allocatable() == {("gpushare.dev/a", "GPU-0::0")}
