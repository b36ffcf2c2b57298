"""The shares are deleted, and their clients waited for, before gpushare is uninstalled."""

import asyncio
from typing import Any

import pytest

from gpushare.api.names import FINALIZER
from gpushare.controller.chart_hooks import uninstall
from gpushare.kube.client import GPU_NODES, GPU_SHARES, KubeError, Object
from tests.unit.fake_kube import FakeKube


def share(name: str) -> Object:
    ready = {"type": "Ready", "status": "False", "message": "1 slot is held; waiting for pod ml/x to end"}
    return {"metadata": {"name": name, "finalizers": [FINALIZER]}, "status": {"conditions": [ready]}}


def cluster(*shares: str, daemons: bool | None = None) -> FakeKube:
    """Shares that wait for their clients when they are deleted, and a node that serves them."""
    kube = FakeKube()
    for name in shares:
        kube.put(GPU_SHARES, share(name))
    serves = bool(shares) if daemons is None else daemons
    kube.put(GPU_NODES, {"metadata": {"name": "n1"}, "status": {"daemons": [{}] if serves else []}})
    return kube


async def let_go(kube: FakeKube) -> None:
    """The clients of all shares end once each share is being deleted, and was seen to wait."""
    await kube.until(lambda: all("deletionTimestamp" in share["metadata"] for share in kube.all(GPU_SHARES)))
    asked = len(kube.requests)
    await kube.until(lambda: len(kube.requests) > asked + 4)
    for share in kube.all(GPU_SHARES):
        kube.remove(GPU_SHARES, share["metadata"]["name"])
    kube.put(GPU_NODES, {"metadata": {"name": "n1"}, "status": {}})


async def delete_shares(kube: Any, *, seconds: float = 0.2) -> str | None:
    async with asyncio.timeout(5):
        return await uninstall.delete_shares(kube, seconds=seconds, poll_seconds=0.001)


async def test_without_shares_gpushare_may_go() -> None:
    assert await delete_shares(cluster()) is None


async def test_without_its_definitions_gpushare_may_go() -> None:
    kube = FakeKube()
    kube.fail("list", KubeError(404, "NotFound", "the server could not find the requested resource"))
    assert await delete_shares(kube) is None


async def test_a_share_that_is_going_already_is_waited_for() -> None:
    kube = cluster("a")
    await kube.delete(GPU_SHARES, "a")
    result, _ = await asyncio.gather(delete_shares(kube, seconds=30), let_go(kube))
    assert result is None
    assert kube.writes == ["delete gpushares/a"], "it is not deleted a second time"


async def test_shares_are_deleted_once_and_waited_for() -> None:
    kube = cluster("a", "b")
    result, _ = await asyncio.gather(delete_shares(kube, seconds=30), let_go(kube))
    assert result is None
    assert kube.writes == ["delete gpushares/a", "delete gpushares/b"]


async def test_clients_that_do_not_end_are_told_after_the_time_is_over() -> None:
    why = await delete_shares(cluster("a"), seconds=0.02)
    assert why is not None
    assert "GpuShare a: 1 slot is held; waiting for pod ml/x to end" in why


async def test_daemons_without_a_share_are_told_with_their_node() -> None:
    why = await delete_shares(cluster(daemons=True), seconds=0.02)
    assert why is not None
    assert "MPS daemons still run on n1" in why


@pytest.mark.parametrize("error", [TimeoutError(), KubeError(429, "TooManyRequests", "try again later")], ids=repr)
async def test_an_api_server_that_is_away_or_busy_for_a_moment_is_asked_again(error: Exception) -> None:
    kube = cluster()
    kube.fail("list", error)

    async def come_back() -> None:
        await kube.until(lambda: len(kube.requests) > 1)
        kube.heal()

    result, _ = await asyncio.gather(delete_shares(kube, seconds=30), come_back())
    assert result is None
