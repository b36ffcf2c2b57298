"""The node's slice in the API: whose it is, and what becomes of it."""

import asyncio
from types import SimpleNamespace

import pytest

from gpushare.agent.dra.publisher import SlicePublisher
from gpushare.agent.dra.slices import resource_slice
from gpushare.kube.client import NODES, RESOURCE_SLICES, KubeError
from tests.unit.fake_kube import FORBIDDEN, FakeKube

NAME = "n-gpushare.dev"


async def test_the_slice_of_a_node_that_was_made_again_is_the_new_nodes() -> None:
    """The garbage collector would delete one of the old Node again and again."""
    kube, clock = FakeKube(), SimpleNamespace(now=100.0)
    publisher = SlicePublisher(kube, "n", lambda: clock.now, lambda: None)  # type: ignore[arg-type]
    publisher.follow()
    await kube.followed(RESOURCE_SLICES)
    try:
        for uid in ("first", "second"):
            kube.put(NODES, {"metadata": {"name": "n", "uid": uid}})
            clock.now += 60
            await publisher.publish(resource_slice("n", await publisher.node_uid(), [{"name": "gpu-0"}]))
            await kube.until(lambda: publisher.present is not None)
            assert kube.live(RESOURCE_SLICES, NAME)["metadata"]["ownerReferences"][0]["uid"] == uid
            kube.remove(NODES, "n")
            kube.remove(RESOURCE_SLICES, NAME)  # by the kubelet, as it starts
            await kube.until(lambda: publisher.present is None)
            await asyncio.sleep(0)
    finally:
        await publisher.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FORBIDDEN, "the API server refuses to apply resourceslices n-gpushare.dev: Forbidden: a policy says no"),
        (KubeError(503, "ServiceUnavailable", "busy"), ""),
        (TimeoutError(), ""),
    ],
)
async def test_a_slice_that_is_refused_again_is_told_until_it_is_taken(error: Exception, told: str) -> None:
    kube, clock = FakeKube(), SimpleNamespace(now=100.0)
    kube.put(NODES, {"metadata": {"name": "n", "uid": "first"}})
    publisher = SlicePublisher(kube, "n", lambda: clock.now, lambda: None)  # type: ignore[arg-type]
    publisher.follow()
    await kube.followed(RESOURCE_SLICES)
    try:
        kube.fail("apply resourceslices", error)
        for said in ("", told, told):
            clock.now += 60
            await publisher.publish(resource_slice("n", "first", [{"name": "gpu-0"}]))
            assert publisher.refused.startswith(said)
            assert bool(publisher.refused) is bool(said), "a first refusal may be of an object that has just changed"
        kube.heal()
        clock.now += 60
        await publisher.publish(resource_slice("n", "first", [{"name": "gpu-0"}]))
        assert publisher.refused == ""
    finally:
        await publisher.close()
