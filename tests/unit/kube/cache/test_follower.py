"""Following changes alone: from now on, across lost connections, and past an expired version."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpushare.kube.cache.reflector import Follower
from gpushare.kube.client import CORE_EVENTS, KubeError, Object
from tests.unit.fake_kube import FakeKube


@pytest.fixture
def kube() -> FakeKube:
    kube = FakeKube()
    kube.put(CORE_EVENTS, event("old"))
    return kube


@pytest.fixture
async def seen(kube: FakeKube) -> AsyncIterator[list[str]]:
    """The names that the follower of this namespace's Killing events has told, from its first watch on."""
    names: list[str] = []
    follower = Follower(
        kube,  # type: ignore[arg-type]
        CORE_EVENTS,
        lambda obj: names.append(obj["metadata"]["name"]),
        "team",
        first_backoff=0.0,
        fieldSelector="reason=Killing",
    )
    running = asyncio.create_task(follower.run())
    await kube.followed(CORE_EVENTS)
    yield names
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def event(name: str, count: int = 1, reason: str = "Killing", namespace: str = "team") -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "reason": reason, "count": count}


async def test_what_was_there_before_is_neither_fetched_nor_told(kube: FakeKube, seen: list[str]) -> None:
    assert seen == []
    assert kube.requests == ["list events?limit=1", "watch events"]


async def test_what_is_made_or_changed_is_told_and_what_goes_is_not(kube: FakeKube, seen: list[str]) -> None:
    kube.put(CORE_EVENTS, event("new"))
    kube.put(CORE_EVENTS, event("new", count=2))
    kube.remove(CORE_EVENTS, "new")
    kube.put(CORE_EVENTS, event("other", reason="Started"))
    kube.put(CORE_EVENTS, event("elsewhere", namespace="shop"))
    await kube.followed(CORE_EVENTS)
    assert seen == ["new", "new"]


async def test_a_lost_connection_is_taken_up_where_it_was(kube: FakeKube, seen: list[str]) -> None:
    kube.put(CORE_EVENTS, event("a"))
    await kube.followed(CORE_EVENTS)
    kube.break_watches(OSError("reset"))
    kube.put(CORE_EVENTS, event("b"))
    await kube.until(lambda: "b" in seen)
    assert seen == ["a", "b"]
    assert kube.requests == ["list events?limit=1", "watch events", "watch events"]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_what_happened_while_the_api_refused_is_told_once_it_answers(
    kube: FakeKube, seen: list[str], status: int
) -> None:
    refused = KubeError(status, "", "the API server restarts")
    kube.fail("watch events", refused)
    kube.break_watches(refused)
    kube.put(CORE_EVENTS, event("in the gap"))
    await kube.until(lambda: kube.requests.count("watch events") >= 10)
    kube.heal()
    await kube.until(lambda: seen)
    assert seen == ["in the gap"]
    assert "list events?limit=1" not in kube.requests[1:]


async def test_a_version_that_is_refused_again_and_again_is_given_up(kube: FakeKube, seen: list[str]) -> None:
    refused = KubeError(504, "Timeout", "Too large resource version: 101, current: 7")
    kube.fail("watch events", refused)
    kube.break_watches(refused)
    await kube.until(lambda: kube.requests.count("list events?limit=1") == 2)
    kube.heal()
    await kube.followed(CORE_EVENTS)
    kube.put(CORE_EVENTS, event("new"))
    await kube.until(lambda: seen)
    assert seen == ["new"]


async def test_an_api_server_that_refuses_is_asked_ever_more_seldom(
    kube: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    kube.fail("watch events", KubeError(503, "", "the API server restarts"))
    follower = Follower(kube, CORE_EVENTS, lambda _: None, "team", first_backoff=0.1)  # type: ignore[arg-type]
    running = asyncio.create_task(follower.run())
    await kube.until(lambda: kube.requests.count("watch events") == 3)
    kube.heal()
    await kube.followed(CORE_EVENTS)
    kube.put(CORE_EVENTS, event("new"))
    await kube.followed(CORE_EVENTS)
    kube.break_watches(OSError("reset"))
    await kube.until(lambda: kube.requests.count("watch events") == 4)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    waits = [record.getMessage().partition(" again in ")[2][:5] for record in caplog.records]
    assert waits == ["0.1 s", "0.2 s", "0.1 s"], "it begins anew once the watch has brought something"


async def test_after_an_expired_version_it_goes_on_from_now(kube: FakeKube, seen: list[str]) -> None:
    kube.break_watches(KubeError(410, "Expired", "too old"))
    kube.put(CORE_EVENTS, event("lost"))
    kube.expire()
    await kube.until(lambda: kube.requests.count("watch events") == 2)
    await kube.followed(CORE_EVENTS)
    kube.put(CORE_EVENTS, event("new"))
    await kube.followed(CORE_EVENTS)
    assert seen == ["new"]
    assert kube.requests == ["list events?limit=1", "watch events"] * 2
