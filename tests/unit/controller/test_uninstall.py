"""Uninstalling: refused while a share would be left behind, or after its clients have gone."""

import asyncio
from typing import Any

from gpushare.controller import uninstall
from gpushare.kube.client import GPU_NODES, GPU_SHARES, KubeError, Object, Resource


class Cluster:
    """Deleted shares go after `goes_after` lists, and their daemons with them."""

    def __init__(self, *shares: str, goes_after: int = 1) -> None:
        self.shares: dict[str, Object] = {name: share(name) for name in shares}
        self.daemons = bool(shares)
        self.goes_after = goes_after
        self.deleted: list[str] = []
        self.failures: list[Exception] = []
        self.known = True

    async def list_all(self, resource: Resource, namespace: str | None = None, **_: str) -> Object:
        if self.failures:
            raise self.failures.pop()
        if not self.known:
            raise KubeError(404, "NotFound", "the server could not find the requested resource")
        if resource == GPU_NODES:
            status = {"daemons": [{}]} if self.daemons else {}
            return {"items": [{"metadata": {"name": "n1"}, "status": status}]}
        self.goes_after -= bool(self.deleted)
        if self.goes_after <= 0:
            self.shares, self.daemons = {}, False
        return {"items": list(self.shares.values())}

    async def delete(self, resource: Resource, name: str) -> None:
        assert resource == GPU_SHARES
        self.deleted.append(name)
        self.shares[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def share(name: str) -> Object:
    ready = {"type": "Ready", "status": "False", "message": "1 slot is held; waiting for pod ml/x to end"}
    return {"metadata": {"name": name}, "status": {"conditions": [ready]}}


async def prepare(cluster: Any, *, delete: bool = False, seconds: float = 0.2) -> str | None:
    async with asyncio.timeout(5):
        return await uninstall.prepare(cluster, delete=delete, seconds=seconds, poll_seconds=0.001)


async def test_without_shares_gpushare_may_go() -> None:
    assert await prepare(Cluster()) is None


async def test_without_its_definitions_gpushare_may_go() -> None:
    cluster = Cluster()
    cluster.known = False
    assert await prepare(cluster) is None


async def test_with_shares_it_is_refused_by_name_and_nothing_is_changed() -> None:
    cluster = Cluster("b", "a")
    why = await prepare(cluster)
    assert why is not None
    assert "2 GpuShares (a, b)" in why
    assert "kubectl delete gpushares --all" in why
    assert cluster.deleted == []


async def test_a_share_that_is_going_already_is_waited_for() -> None:
    cluster = Cluster("a")
    await cluster.delete(GPU_SHARES, "a")
    cluster.goes_after = 4
    assert await prepare(cluster) is None


async def test_where_it_was_chosen_shares_are_deleted_once_and_waited_for() -> None:
    cluster = Cluster("a", "b", goes_after=5)
    assert await prepare(cluster, delete=True) is None
    assert cluster.deleted == ["a", "b"]


async def test_clients_that_do_not_end_are_told_after_the_time_is_over() -> None:
    why = await prepare(Cluster("a", goes_after=10**6), delete=True, seconds=0.02)
    assert why is not None
    assert "GpuShare a: 1 slot is held; waiting for pod ml/x to end" in why


async def test_daemons_without_a_share_are_told_with_their_node() -> None:
    cluster = Cluster(goes_after=10**6)
    cluster.daemons = True
    why = await prepare(cluster, seconds=0.02)
    assert why is not None
    assert "MPS daemons still run on n1" in why


async def test_an_api_server_that_is_away_for_a_moment_is_asked_again() -> None:
    cluster = Cluster()
    cluster.failures = [TimeoutError()]
    assert await prepare(cluster) is None
