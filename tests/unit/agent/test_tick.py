"""What a tick offers to the kubelet, between Allocate and the kubelet's next list."""

import pytest

from gpushare.agent.kubelet.listing import WITHDRAWN_SECONDS
from gpushare.kube.client import GPU_SHARES, PODS, Object
from gpushare.mps.layout import gpu_dir
from tests.unit.agent.fake_node import SHARE, FakeNode, read_wanted


async def test_a_young_pod_that_was_listed_and_ended_holds_up_no_draining(node: FakeNode) -> None:
    await node.serving()
    await node.kubelet.allocate("GPU-0::3")
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::3"])
    await node.read()
    assert not node.daemon()["drained"]
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    await node.read()
    node.kubelet.holders = set()
    await node.until(lambda: node.daemon()["drained"])


async def test_a_slot_beyond_a_shrunk_share_is_withdrawn_when_its_pod_ends(node: FakeNode) -> None:
    await node.serving()
    await hold_all_four(node)
    shrink(node, 2)
    await node.until(lambda: node.decided["GPU-0"].offer.per_gpu == 2)
    assert len(node.kubelet.ids()) == 4
    node.kubelet.holders.discard(("gpushare.dev/a", "GPU-0::1"))
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::0", "GPU-0::2", "GPU-0::3"])


async def test_a_container_with_a_slot_beyond_the_share_waits_for_room(node: FakeNode) -> None:
    await node.serving()
    await hold_all_four(node)
    shrink(node, 2)
    await node.until(lambda: node.decided["GPU-0"].offer.per_gpu == 2)
    not_ready = node.kubelet.not_ready
    await node.kubelet.allocate("GPU-0::3")
    why = not_ready(["GPU-0::3"])
    assert "3 slots of GpuShare a are held by containers that have started, and it has 2 on each GPU now" in why
    assert not_ready(["GPU-0::0"]) is None
    node.kubelet.holders -= {("gpushare.dev/a", "GPU-0::0"), ("gpushare.dev/a", "GPU-0::1")}
    await node.read()
    assert not_ready(["GPU-0::3"]) is None


async def test_free_slots_of_a_shrunk_share_are_unhealthy_and_vanish_later(node: FakeNode) -> None:
    await node.serving()
    shrink(node, 2)
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::0", "GPU-0::1"])
    await node.read()
    assert node.kubelet.ids(healthy=False) == ["GPU-0::2", "GPU-0::3"]
    node.kubelet.later = WITHDRAWN_SECONDS
    await node.until(lambda: node.kubelet.ids(healthy=False) == [])
    assert node.kubelet.ids() == ["GPU-0::0", "GPU-0::1"]


async def test_a_share_s_plugin_goes_only_when_it_lists_no_slot_any_more(node: FakeNode) -> None:
    await node.serving()
    node.kube.assign()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())
    await node.read()
    assert len(node.kubelet.ids(healthy=False)) == 4
    node.kubelet.later = WITHDRAWN_SECONDS
    await node.until(lambda: "gpushare.dev/a" not in node.kubelet.started)


async def test_a_server_gone_for_a_moment_closes_its_gate_and_keeps_its_slots(
    node: FakeNode,
) -> None:
    await node.stop()
    node.brief_seconds = 3600.0
    node.start()
    await node.serving()
    lose_server(node)
    await node.until(lambda: node.gates() == [])
    await node.until(lambda: node.daemon()["ready"] is False)
    assert len(node.kubelet.ids()) == 4
    assert "ServerContextLost" in node.kubelet.not_ready(["GPU-0::0"])


async def test_once_a_server_is_gone_for_longer_its_free_slots_are_withdrawn(node: FakeNode) -> None:
    await node.stop()
    node.brief_seconds = 1.0
    node.start()
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    await node.read()
    lose_server(node)
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::3"])
    node.supervised = True
    await node.until(lambda: len(node.kubelet.ids()) == 4)


async def test_an_agent_that_never_saw_the_gpu_verified_offers_no_slot_of_it(node: FakeNode) -> None:
    await node.serving()
    await node.stop()
    lose_server(node)
    node.kubelet.started.clear()
    node.start()
    await node.until(lambda: "GPU-0" in node.decided)
    await node.until(lambda: node.daemon().get("ready") is False)
    assert node.kubelet.ids() == []


async def test_a_gpu_that_is_being_given_back_is_given_to_no_container(node: FakeNode) -> None:
    await node.serving()
    node.supervised = False
    node.kube.assign()
    await node.until(lambda: read_wanted(node).stop)
    with pytest.raises(LookupError, match="is being given back by GpuShare a"):
        node.kubelet.edits(["GPU-0::0"])


async def test_mps_pods_devices_are_unhealthy_while_no_gpu_is_known(node: FakeNode) -> None:
    await node.stop()
    node.kubelet.started.clear()
    node.nvml.infos.clear()
    node.start()
    await node.until(lambda: node.kubelet.started == {"internal.gpushare.dev/mps"})
    assert [item.healthy for item in node.kubelet.listed["internal.gpushare.dev/mps"]] == [False] * 64


async def hold_all_four(node: FakeNode) -> None:
    """Four containers have started."""
    for slot in range(4):
        await node.kubelet.allocate(f"GPU-0::{slot}")
        assert node.kubelet.not_ready([f"GPU-0::{slot}"]) is None
        node.kubelet.holders.add(("gpushare.dev/a", f"GPU-0::{slot}"))
    await node.read()


def shrink(node: FakeNode, per_gpu: int) -> None:
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "perGpu": per_gpu}}})


async def test_a_kubelet_that_has_forgotten_a_running_container_drains_no_gpu(node: FakeNode) -> None:
    slot = {("gpushare.dev/a", "GPU-0::3")}
    await node.serving()
    node.kubelet.holders = slot
    run_pod(node, "Running")
    await node.read()
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    node.kubelet.holders = set()
    await node.until(lambda: reached(node)["status"] == "False")
    await node.read()
    assert "but 1 of this node" in reached(node)["message"]
    assert node.kubelet.ids() == ["GPU-0::3"]
    assert not node.daemon()["drained"]
    node.kubelet.holders = slot
    await node.until(lambda: reached(node)["status"] == "True")
    await node.read()
    assert not node.daemon()["drained"]
    run_pod(node, "Succeeded")
    node.kubelet.holders = set()
    await node.until(lambda: node.daemon()["drained"])


def run_pod(node: FakeNode, phase: str) -> None:
    container = {"name": "app", "resources": {"limits": {"gpushare.dev/a": "1"}}}
    statuses = [{"name": "app", "state": {"running": {}}}]
    pod = {
        "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
        "spec": {"containers": [container]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    node.kube.put(PODS, pod)


def reached(node: FakeNode) -> Object:
    return next(item for item in node.status()["conditions"] if item["type"] == "KubeletReachable")


def lose_server(node: FakeNode) -> None:
    """It is gone, and nobody brings it back."""
    node.supervised = False
    node.nvml.servers.pop("GPU-0")
