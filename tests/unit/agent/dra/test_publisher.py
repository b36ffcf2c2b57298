"""The node's slice in the API: whose it is, and what becomes of it."""

import asyncio
from types import SimpleNamespace

from gpushare.agent.dra.publisher import SlicePublisher
from gpushare.agent.dra.slices import resource_slice
from gpushare.kube.client import NODES, RESOURCE_SLICES
from tests.unit.fake_kube import FakeKube

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
