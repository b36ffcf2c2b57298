"""Leading while the work's event loop is busy: the Lease is renewed, and whoever loses it stops in time."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gpushare.kube.coordination.elector import Elector, LeaseLostError, Timing
from gpushare.kube.coordination.leadership import Leadership
from gpushare.kube.resources import LEASES
from tests.unit.fake_kube import FakeKube

TIMING = Timing(lease_seconds=3.0, renew_seconds=1.5, retry_seconds=0.1, attempt_seconds=0.5)
REFUSED = OSError("connection refused")


def leadership(kube: FakeKube, stop_seconds: float = 1.0, end: Callable[[int], object] = lambda _: None) -> Leadership:
    """`kube` is asked by the election's thread alone."""

    @asynccontextmanager
    async def join() -> AsyncIterator[Elector]:
        yield Elector(kube, namespace="ns", name="l", identity="me", timing=TIMING)  # type: ignore[arg-type]

    return Leadership(join, stop_seconds, end)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - another thread makes it hold
            await asyncio.sleep(0.01)


def held(kube: FakeKube) -> Any:
    return kube.live(LEASES, "l")["spec"].get("holderIdentity")


def for_ever(log: list[str]) -> Callable[[], Any]:
    async def work() -> None:
        log.append("starts")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ends")

    return work


async def stopped(task: Awaitable[None]) -> BaseException | None:
    async with asyncio.timeout(30):
        (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


async def test_a_blocked_event_loop_keeps_the_lease() -> None:
    kube, log = FakeKube(), list[str]()
    leads = leadership(kube)
    running = asyncio.create_task(leads.lead(for_ever(log)))
    await until(lambda: log)
    before = len(kube.writes)
    time.sleep(2 * TIMING.renew_seconds)  # noqa: ASYNC251 - that is what is tested
    leads.check()
    assert len(kube.writes) > before
    await asyncio.sleep(0.05)
    assert log == ["starts"]
    running.cancel()
    await stopped(running)


async def test_what_cannot_be_renewed_ends_the_work_and_every_write() -> None:
    kube, log = FakeKube(), list[str]()
    leads = leadership(kube)
    running = asyncio.create_task(leads.lead(for_ever(log)))
    await until(lambda: log)
    leads.check()
    kube.fail(error=REFUSED)
    assert isinstance(await stopped(running), LeaseLostError)
    assert log == ["starts", "ends"]
    with pytest.raises(LeaseLostError):
        leads.check()


async def test_a_process_whose_work_hangs_ends_before_another_may_lead() -> None:
    kube, log = FakeKube(), list[str]()
    ended: list[tuple[int, float]] = []
    leads = leadership(kube, 0.2, lambda code: ended.append((code, time.monotonic())))
    running = asyncio.create_task(leads.lead(for_ever(log)))
    await until(lambda: log)
    refused_at = time.monotonic()
    kube.fail(error=REFUSED)
    time.sleep(TIMING.lease_seconds)  # noqa: ASYNC251 - the work's event loop hangs
    ((code, at),) = ended
    assert code == 1
    assert at - refused_at < TIMING.lease_seconds
    assert isinstance(await stopped(running), LeaseLostError)


async def test_a_process_told_to_end_ends_even_while_its_work_hangs() -> None:
    kube, ended = FakeKube(), list[int]()
    log, goes_on = list[str](), asyncio.Event()

    async def work() -> None:
        log.append("starts")
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
                return
            log.append("is told")

    leads = leadership(kube, 0.5, ended.append)
    running = asyncio.create_task(leads.lead(work))
    await until(lambda: log)
    kube.fail(error=REFUSED)
    try:
        await until(lambda: "is told" in log)
        running.cancel()
        await stopped(running)
        assert ended == [1]
    finally:
        goes_on.set()


async def test_work_runs_in_the_callers_loop_and_ends_before_the_lease_returns() -> None:
    kube, seen = FakeKube(), list[Any]()
    leads = leadership(kube)

    async def work() -> None:
        seen.append(threading.current_thread())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            seen.append(held(kube))

    running = asyncio.create_task(leads.lead(work))
    await until(lambda: seen)
    running.cancel()
    assert isinstance(await stopped(running), asyncio.CancelledError)
    assert seen == [threading.current_thread(), "me"]
    assert held(kube) is None


async def test_what_the_work_raises_comes_through() -> None:
    kube = FakeKube()

    async def work() -> None:
        raise LookupError("a bug")

    assert isinstance(await stopped(leadership(kube).lead(work)), LookupError)
    assert held(kube) is None


async def test_a_replica_that_waits_may_not_write_and_can_be_stopped() -> None:
    kube, log = FakeKube(), list[str]()
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 900}
    kube.put(LEASES, {"metadata": {"name": "l", "namespace": "ns"}, "spec": spec})
    leads = leadership(kube)
    running = asyncio.create_task(leads.lead(for_ever(log)))
    await until(lambda: kube.requests)
    with pytest.raises(LeaseLostError):
        leads.check()
    running.cancel()
    await stopped(running)
    assert log == []
    assert held(kube) == "other"
