"""What no watch reports: shares that were deleted unseen, and what the cluster serves."""

import asyncio
import copy

import pytest

from gpushare.controller.cache import resync
from gpushare.controller.cache.fleet_cache import FleetCache
from gpushare.kube.client import DEVICE_CLASSES, GPU_SHARES, RESOURCE_SLICES, Object, Resource
from gpushare.kube.resources import EARLIER_RESOURCE_SLICES
from gpushare.planner.model import EPOCH
from tests.unit.fake_kube import FakeKube


async def test_a_share_that_was_deleted_while_the_watch_was_broken_is_dropped(kube: FakeKube) -> None:
    cache = FleetCache(lambda: None)
    await resync.read_once(kube, cache)
    assert [share.name for share in cache.snapshot(EPOCH).shares] == ["a"]
    kube.remove(GPU_SHARES, "a")
    await resync.read_once(kube, cache)
    assert cache.snapshot(EPOCH).shares == ()


class SlowSlices(FakeKube):
    """Answers what is asked of ResourceSlices only once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.shares_answered, self.may = asyncio.Event(), asyncio.Event()

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object:
        if resource == RESOURCE_SLICES:
            await self.may.wait()
        answer = await super().list_all(resource, namespace, **selectors)
        if resource == GPU_SHARES:
            self.shares_answered.set()
        return answer


async def test_a_share_deleted_during_a_resync_does_not_come_back() -> None:
    kube, cache = SlowSlices(), FleetCache(lambda: None)
    kube.put(GPU_SHARES, {"metadata": {"name": "a"}, "spec": {"clients": {"perGpu": 4}}})
    reading = asyncio.create_task(resync.read_once(kube, cache))
    async with asyncio.timeout(10):
        await kube.shares_answered.wait()
    await asyncio.sleep(0)  # the answer is taken
    share = copy.deepcopy(kube.live(GPU_SHARES, "a"))
    share["metadata"]["resourceVersion"] = str(kube.version + 1)
    cache.shares.remove(share)
    kube.may.set()
    await reading
    assert cache.snapshot(EPOCH).shares == ()


@pytest.mark.parametrize(
    ("version", "served", "words"),
    [
        ("v1.37.0", True, ""),
        ("v1.36.0-gke.100", True, ""),
        ("v2.0.1", True, ""),
        ("v1.35.9", True, "needs Kubernetes 1.36 or newer, and this cluster has v1.35.9"),
        ("v1.37.0", False, "does not serve resource.k8s.io/v1"),
        ("of its own kind", True, ""),
    ],
)
async def test_whether_claims_can_be_delivered_is_read_from_the_api_server(
    kube: FakeKube, version: str, served: bool, words: str
) -> None:
    kube.kubernetes, kube.not_served = version, set() if served else {DEVICE_CLASSES}
    reason = await resync.no_claims(kube)
    assert (words in reason) if words else reason == ""


@pytest.mark.parametrize("served", [RESOURCE_SLICES, *EARLIER_RESOURCE_SLICES], ids=lambda resource: resource.version)
async def test_nvidias_dra_driver_is_seen_on_every_kubernetes_that_has_it(kube: FakeKube, served: Resource) -> None:
    kube.not_served = {RESOURCE_SLICES, *EARLIER_RESOURCE_SLICES} - {served}
    for node, driver in (("a", "gpu.nvidia.com"), ("b", "compute-domain.nvidia.com")):
        kube.put(served, {"metadata": {"name": f"{node}-slice"}, "spec": {"driver": driver, "nodeName": node}})
    assert await resync.nvidia_dra_nodes(kube) == {"a"}


async def test_without_resourceslices_no_node_is_nvidias(kube: FakeKube) -> None:
    kube.not_served = {RESOURCE_SLICES, *EARLIER_RESOURCE_SLICES}
    assert await resync.nvidia_dra_nodes(kube) == frozenset()
