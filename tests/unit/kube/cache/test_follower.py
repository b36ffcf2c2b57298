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
        lambda it: names.append(it["metadata"]["name"]),
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
