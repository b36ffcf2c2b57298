"""Following changes alone: from now on, across lost connections, and past an expired version."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gpushare.kube.client import CORE_EVENTS, KubeError
from gpushare.kube.reflector import Follower


class Server:
    """Each watch answers with what `watches` holds for it, then breaks off as told, and at last hangs."""

    def __init__(self, *watches: list[Any]) -> None:
        self.watches = list(watches)
        self.lists: list[dict[str, str]] = []
        self.versions: list[str] = []
        self.idle = asyncio.Event()

    async def list_all(self, _: Any, namespace: str, **selectors: str) -> Any:
        self.lists.append({"namespace": namespace, **selectors})
        return {"items": [obj("old")], "metadata": {"resourceVersion": f"{len(self.lists)}00"}}

    async def watch(self, _: Any, __: str, version: str, selectors: dict[str, str]) -> AsyncIterator[Any]:
        assert selectors == {"fieldSelector": "reason=Killing"}
        self.versions.append(version)
        if not self.watches:
            self.idle.set()
            await asyncio.Event().wait()
        for item in self.watches.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


def obj(name: str, version: str = "1") -> Any:
    return {"metadata": {"name": name, "resourceVersion": version}}


def change(kind: str, name: str, version: str) -> Any:
    return {"type": kind, "object": obj(name, version)}


async def follow(server: Server) -> list[str]:
    seen: list[str] = []
    follower = Follower(
        server,  # type: ignore[arg-type]
        CORE_EVENTS,
        lambda it: seen.append(it["metadata"]["name"]),
        "team",
        first_backoff=0.0,
        fieldSelector="reason=Killing",
    )
    running = asyncio.create_task(follower.run())
    async with asyncio.timeout(5):
        await server.idle.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return seen


async def test_what_was_there_before_is_neither_fetched_nor_told() -> None:
    server = Server([change("ADDED", "new", "101"), change("MODIFIED", "new", "102"), change("DELETED", "new", "103")])
    assert await follow(server) == ["new", "new"]
    assert server.lists == [{"namespace": "team", "limit": "1"}]
    assert server.versions == ["100", "103"]


async def test_a_lost_connection_is_taken_up_where_it_was() -> None:
    server = Server([change("ADDED", "a", "101"), OSError("reset")], [change("ADDED", "b", "102")])
    assert await follow(server) == ["a", "b"]
    assert server.versions == ["100", "101", "102"]


async def test_after_an_expired_version_it_goes_on_from_now() -> None:
    server = Server([KubeError(410, "Expired", "too old")])
    assert await follow(server) == []
    assert server.versions == ["100", "200"]
