"""One active replica: who works, who waits, and what happens when the Lease is lost."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from gpushare.kube.client import Kube, Object
from gpushare.kube.coordination.elector import Elector, LeaseLostError, Timing, lead
from gpushare.kube.resources import LEASES
from gpushare.kube.session import ApiSession
from tests.unit.fake_kube import FakeKube
from tests.unit.kube.answering import answering

REFUSED = OSError("connection refused")
OLD = "2026-01-01T00:00:00.000000Z"


def spec(kube: FakeKube) -> Object:
    """The spec of the Lease."""
    spec: Object = kube.live(LEASES, "l")["spec"]
    return spec


class SleepersClock:
    """Time passes only while `run` or `advance` lets it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await settle()
        self.now = end


async def settle() -> None:
    """Every task gets as far as it can without time."""
    for _ in range(50):
        await asyncio.sleep(0)


def elector(kube: FakeKube, clock: SleepersClock, name: str) -> Elector:
    return Elector(
        kube,  # type: ignore[arg-type]
        namespace="ns",
        name="l",
        identity=name,
        monotonic=clock.monotonic,
        sleep=clock.sleep,
    )


def held_by(holder: str | None, **spec: Any) -> Object:
    times = {"acquireTime": OLD, "renewTime": OLD, "leaseDurationSeconds": 30, "leaseTransitions": 4}
    return {"metadata": {"name": "l", "namespace": "ns"}, "spec": {"holderIdentity": holder, **times, **spec}}


def for_ever(log: list[str], name: str) -> Callable[[], Any]:
    async def work() -> None:
        log.append(f"{name} starts")
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"{name} ends")

    return work


def started(awaitable: Any) -> "asyncio.Task[None]":
    return asyncio.ensure_future(awaitable)


async def stopped(task: Awaitable[None]) -> BaseException | None:
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


@pytest.mark.parametrize(
    ("lease", "seconds", "holds", "transitions"),
    [
        pytest.param(None, 0, True, 0, id="a Lease that is not there is created"),
        pytest.param(held_by(None), 0, True, 5, id="one that was given back is taken at once"),
        pytest.param(held_by(""), 0, True, 5, id="an empty holder is none"),
        pytest.param(held_by("me"), 0, True, 4, id="our own, from before a restart, goes on"),
        pytest.param(held_by("other"), 29, False, 4, id="another's may be alive for its full duration, by our clock"),
        pytest.param(held_by("other"), 31, True, 5, id="another's that was not renewed is taken after its duration"),
        pytest.param(held_by("other", leaseDurationSeconds=90), 60, False, 4, id="its own duration counts, not ours"),
    ],
)
async def test_when_a_lease_may_be_taken(lease: Object | None, seconds: int, holds: bool, transitions: int) -> None:
    kube, clock = FakeKube(), SleepersClock()
    if lease is not None:
        kube.put(LEASES, lease)
    acquiring = started(elector(kube, clock, "me").acquire())
    await clock.advance(seconds)
    assert acquiring.done() is holds
    assert spec(kube)["leaseTransitions"] == transitions
    acquiring.cancel()


async def test_a_renewal_is_one_write_that_keeps_since_when_the_lease_is_held() -> None:
    kube, clock = FakeKube(), SleepersClock()
    kube.put(LEASES, held_by("me"))
    running = started(lead(elector(kube, clock, "me"), for_ever([], "me")))
    await clock.advance(20)
    assert kube.writes == ["patch leases/l"] * 5, "at once, and every 5 s"
    assert spec(kube)["acquireTime"] == OLD
    assert spec(kube)["renewTime"] > OLD
    running.cancel()
    await stopped(running)


async def test_the_second_replica_works_once_the_first_gave_the_lease_back() -> None:
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    leading = started(lead(elector(kube, clock, "a"), for_ever(log, "a")))
    await clock.advance(1)
    two = started(lead(elector(kube, clock, "b"), for_ever(log, "b")))
    await clock.advance(300)
    assert log == ["a starts"]
    leading.cancel()
    await stopped(leading)
    assert "holderIdentity" not in spec(kube)
    await clock.advance(6)
    assert log == ["a starts", "a ends", "b starts"]
    two.cancel()
    await stopped(two)


async def test_of_two_that_start_at_once_one_leads() -> None:
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    both = [started(lead(elector(kube, clock, name), for_ever(log, name))) for name in ("a", "b")]
    await clock.advance(120)
    assert len(log) == 1
    assert spec(kube)["holderIdentity"] == log[0].split()[0]
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)


async def test_two_that_race_for_an_expired_lease_never_work_at_once() -> None:
    """Whoever cannot reach the API server ends before the other may begin, in whatever order they lose it."""
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    first, second = kube.connection(), kube.connection()
    leading = started(lead(elector(first, clock, "a"), for_ever(log, "a")))
    await clock.advance(1)
    two = started(lead(elector(second, clock, "b"), for_ever(log, "b")))
    await clock.advance(7)
    first.fail(error=REFUSED)
    await clock.advance(16)
    assert log == ["a starts"]
    await clock.advance(3)
    assert log == ["a starts", "a ends"]
    await clock.advance(20)
    assert log == ["a starts", "a ends", "b starts"]
    assert isinstance(await stopped(leading), LeaseLostError)
    two.cancel()
    await stopped(two)


async def test_a_lease_that_cannot_be_renewed_ends_the_work() -> None:
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    running = started(lead(elector(kube, clock, "a"), for_ever(log, "a")))
    await clock.advance(1)
    kube.fail(error=REFUSED)
    await clock.advance(18)
    assert log == ["a starts"]
    await clock.advance(2)
    assert log == ["a starts", "a ends"]
    with pytest.raises(LeaseLostError, match="could not be renewed for 20 s"):
        await running


async def test_a_failed_renewal_is_soon_tried_again_and_keeps_its_rhythm() -> None:
    kube, clock = FakeKube(), SleepersClock()
    running = started(lead(elector(kube, clock, "a"), for_ever([], "a")))
    await clock.advance(1)
    kube.fail(error=REFUSED)
    await clock.advance(4)
    kube.heal()
    before = spec(kube)["renewTime"]
    await clock.advance(1)
    assert spec(kube)["renewTime"] > before
    kube.writes.clear()
    await clock.advance(10)
    assert len(kube.writes) == 2
    running.cancel()
    await stopped(running)


async def test_a_lease_that_another_took_ends_the_work_at_once() -> None:
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    running = started(lead(elector(kube, clock, "a"), for_ever(log, "a")))
    await clock.advance(1)
    kube.put(LEASES, held_by("b"))
    await clock.advance(5)
    with pytest.raises(LeaseLostError, match="was taken by b"):
        async with asyncio.timeout(5):
            await running
    assert log == ["a starts", "a ends"]
    assert spec(kube)["holderIdentity"] == "b", "what is not ours is not given back"


async def test_a_request_that_hangs_fails_and_never_outlasts_the_deadline() -> None:
    kube = FakeKube()
    timing = Timing(lease_seconds=0.6, renew_seconds=0.3, retry_seconds=0.05, attempt_seconds=5.0)

    async def work() -> None:
        kube.fail()
        await asyncio.Event().wait()

    hanging = Elector(kube, namespace="ns", name="l", identity="a", timing=timing)  # type: ignore[arg-type]
    running = started(lead(hanging, work))
    with pytest.raises(LeaseLostError, match=r"could not be renewed for 0\.3 s"):
        async with asyncio.timeout(2):
            await running


async def test_an_api_server_that_hangs_at_a_renewal_ends_the_work() -> None:
    """The connections are as in a cluster: their requests may take 15 s each."""
    renewing = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.method == "PATCH":
            renewing.set()
            await asyncio.Event().wait()
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        return web.json_response({**await request.json(), "metadata": {"name": "l", "resourceVersion": "1"}})

    async with answering(answer) as port:
        kube = Kube(ApiSession(Configuration(host=f"http://127.0.0.1:{port}"), "test"))
        timing = Timing(lease_seconds=1.2, renew_seconds=0.6, retry_seconds=0.05, attempt_seconds=5.0)
        elector = Elector(kube, namespace="ns", name="l", identity="a", timing=timing)
        running = started(lead(elector, asyncio.Event().wait))  # type: ignore[arg-type]
        with pytest.raises(LeaseLostError, match=r"could not be renewed for 0\.6 s"):
            async with asyncio.timeout(5):
                await running
        assert renewing.is_set()
        with pytest.raises(LeaseLostError):
            elector.check()
        await kube.close()


async def test_a_lease_that_was_deleted_is_made_again() -> None:
    kube, clock = FakeKube(), SleepersClock()
    log: list[str] = []
    running = started(lead(elector(kube, clock, "a"), for_ever(log, "a")))
    await clock.advance(1)
    kube.remove(LEASES, "l")
    await clock.advance(15)
    assert spec(kube)["holderIdentity"] == "a"
    assert log == ["a starts"]
    running.cancel()
    await stopped(running)


async def test_work_that_ends_gives_the_lease_back() -> None:
    kube, clock = FakeKube(), SleepersClock()

    async def work() -> None:
        pass

    await lead(elector(kube, clock, "a"), work)
    assert "holderIdentity" not in spec(kube)


async def test_what_the_work_raises_comes_through() -> None:
    kube = FakeKube()

    async def work() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await lead(elector(kube, SleepersClock(), "a"), work)
    assert "holderIdentity" not in spec(kube)


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    kube, clock = FakeKube(), SleepersClock()
    kube.fail(error=REFUSED)
    acquiring = started(elector(kube, clock, "a").acquire())
    await clock.advance(600)
    assert not acquiring.done()
    kube.heal()
    await clock.advance(5)
    assert acquiring.done()
