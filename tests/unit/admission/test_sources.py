"""What reviews are decided on: watched objects, and a direct question for what the watch has not seen yet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gpushare.admission.sources import ClusterSources
from gpushare.kube.client import GPU_SHARES, Object, Resource


def share(name: str, per_gpu: int, version: str) -> Object:
    clients = {"perGpu": per_gpu, "memory": {"default": "8Gi"}}
    return {"metadata": {"name": name, "resourceVersion": version}, "spec": {"clients": clients}}


class FakeKube:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.events: asyncio.Queue[Object] = asyncio.Queue()
        self.unseen: dict[str, Object] = {}

    async def list_all(self, resource: Resource, namespace: str | None = None, **_: str) -> Object:
        items = [share("old", 8, "1")] if resource is GPU_SHARES else [namespace_object("shop")]
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def watch(self, resource: Resource, *_: Any) -> AsyncIterator[Object]:
        if resource is not GPU_SHARES:
            await asyncio.Event().wait()
        while True:
            yield await self.events.get()

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        self.asked.append(name)
        return self.unseen.get(name)


def namespace_object(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {"team": name}}}


async def followed() -> tuple[FakeKube, ClusterSources, asyncio.Task[None]]:
    kube = FakeKube()
    sources = ClusterSources(kube)  # type: ignore[arg-type]
    assert not sources.synced
    task = asyncio.create_task(sources.run())
    async with asyncio.timeout(5):
        while not sources.synced:  # noqa: ASYNC110 - two events, and no hurry
            await asyncio.sleep(0.01)
    return kube, sources, task


async def test_what_is_watched_is_not_asked_for() -> None:
    kube, sources, task = await followed()
    assert (await sources.shares({"old"}))["old"].spec.clients.per_gpu == 8
    assert await sources.namespace_labels("shop") == {"team": "shop"}
    assert sources.share_names() == ["old"]
    assert kube.asked == []
    task.cancel()


async def test_what_was_created_a_moment_ago_is_found() -> None:
    kube, sources, task = await followed()
    kube.unseen = {"new": share("new", 4, "7"), "team": namespace_object("team")}
    assert set(await sources.shares({"new", "none", ""})) == {"new"}
    assert await sources.namespace_labels("team") == {"team": "team"}
    assert await sources.namespace_labels("none") == {}
    assert sorted(kube.asked) == ["new", "none", "none", "team"]
    task.cancel()


async def test_a_changed_share_is_read_again() -> None:
    kube, sources, task = await followed()
    before = (await sources.shares({"old"}))["old"]
    assert (await sources.shares({"old"}))["old"] is before
    kube.events.put_nowait({"type": "MODIFIED", "object": share("old", 2, "2")})
    async with asyncio.timeout(5):
        while (await sources.shares({"old"}))["old"] is before:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    assert (await sources.shares({"old"}))["old"].spec.clients.per_gpu == 2
    task.cancel()
