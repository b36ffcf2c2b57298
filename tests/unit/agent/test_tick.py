"""What a tick offers to the kubelet, between Allocate and the kubelet's next list."""

import pytest

from gpushare.agent.kubelet.listing import WITHDRAWN_SECONDS
from gpushare.kube.client import GPU_SHARES, PODS, Object
from gpushare.mps.layout import gpu_dir
from tests.unit.agent.agent_world import SHARE, World, read_wanted


async def test_a_young_pod_that_was_listed_and_ended_holds_up_no_draining(world: World) -> None:
    await world.serving()
    await world.kubelet.allocate("GPU-0::3")
    world.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::3"])
    await world.read()
    assert not world.daemon()["drained"]
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    await world.read()
    world.kubelet.holders = set()
    await world.until(lambda: world.daemon()["drained"])


async def test_a_young_pod_s_slot_beyond_a_shrunk_share_is_withdrawn_when_it_ends(world: World) -> None:
    await world.serving()
    await hold_all_four(world)
    shrink(world, 2)
    await world.until(lambda: world.state.decisions["GPU-0"].offer.per_gpu == 2)
    assert len(world.kubelet.ids()) == 4
    world.kubelet.holders.discard(("gpushare.dev/a", "GPU-0::1"))
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::0", "GPU-0::2", "GPU-0::3"])


async def test_a_container_allocated_before_a_freed_slot_is_withdrawn_waits_for_room(world: World) -> None:
    await world.serving()
    await hold_all_four(world)
    shrink(world, 2)
    await world.until(lambda: world.state.decisions["GPU-0"].offer.per_gpu == 2)
    not_ready = world.kubelet.hooks["gpushare.dev/a"].not_ready
    await world.kubelet.allocate("GPU-0::3")
    why = await not_ready(["GPU-0::3"])
    assert "3 containers that have started hold slots of GpuShare a, which has 2 on each GPU now" in why
    assert await not_ready(["GPU-0::0"]) is None
    world.kubelet.holders -= {("gpushare.dev/a", "GPU-0::0"), ("gpushare.dev/a", "GPU-0::1")}
    await world.read()
    assert await not_ready(["GPU-0::3"]) is None


async def test_free_slots_of_a_shrunk_share_are_listed_as_unhealthy_and_vanish_later(world: World) -> None:
    await world.serving()
    shrink(world, 2)
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::0", "GPU-0::1"])
    await world.read()
    assert world.kubelet.ids(healthy=False) == ["GPU-0::2", "GPU-0::3"]
    world.kubelet.later = WITHDRAWN_SECONDS
    await world.until(lambda: world.kubelet.ids(healthy=False) == [])
    assert world.kubelet.ids() == ["GPU-0::0", "GPU-0::1"]


async def test_a_share_s_plugin_goes_only_when_it_lists_no_slot_any_more(world: World) -> None:
    await world.serving()
    world.kube.assign()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    await world.read()
    assert len(world.kubelet.ids(healthy=False)) == 4
    world.kubelet.later = WITHDRAWN_SECONDS
    await world.until(lambda: "gpushare.dev/a" not in world.kubelet.started)


async def test_while_a_server_is_gone_for_a_moment_its_gate_is_closed_and_its_slots_are_offered(
    world: World,
) -> None:
    await world.stop()
    world.brief_seconds = 3600.0
    world.start()
    await world.serving()
    lose_server(world)
    await world.until(lambda: world.gates() == [])
    await world.until(lambda: world.daemon()["ready"] is False)
    assert len(world.kubelet.ids()) == 4
    assert "ServerLetGo" in await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::0"])


async def test_once_a_server_is_gone_for_longer_its_free_slots_are_withdrawn(world: World) -> None:
    await world.stop()
    world.brief_seconds = 1.0
    world.start()
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    await world.read()
    lose_server(world)
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::3"])
    world.supervised = True
    await world.until(lambda: len(world.kubelet.ids()) == 4)


async def test_an_agent_that_never_saw_the_gpu_verified_offers_no_slot_of_it(world: World) -> None:
    await world.serving()
    await world.stop()
    lose_server(world)
    world.kubelet.started.clear()
    world.start()
    await world.until(lambda: "GPU-0" in world.state.decisions)
    await world.until(lambda: world.daemon().get("ready") is False)
    assert world.kubelet.ids() == []


async def test_a_gpu_that_is_being_given_back_is_given_to_no_container(world: World) -> None:
    await world.serving()
    world.supervised = False
    world.kube.assign()
    await world.until(lambda: read_wanted(world).stop)
    with pytest.raises(LookupError, match="is being given back by GpuShare a"):
        world.kubelet.hooks["gpushare.dev/a"].edits(["GPU-0::0"])


async def test_devices_for_mps_pods_are_unhealthy_and_not_gone_while_no_gpu_is_known(world: World) -> None:
    await world.stop()
    world.kubelet.started.clear()
    world.nvml.infos.clear()
    world.start()
    await world.until(lambda: world.kubelet.started == {"internal.gpushare.dev/mps"})
    assert [item.healthy for item in world.kubelet.listed["internal.gpushare.dev/mps"]] == [False] * 64


async def hold_all_four(world: World) -> None:
    """Four containers have started."""
    for slot in range(4):
        await world.kubelet.allocate(f"GPU-0::{slot}")
        assert await world.kubelet.hooks["gpushare.dev/a"].not_ready([f"GPU-0::{slot}"]) is None
        world.kubelet.holders.add(("gpushare.dev/a", f"GPU-0::{slot}"))
    await world.read()


def shrink(world: World, per_gpu: int) -> None:
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "perGpu": per_gpu}}})


async def test_a_kubelet_that_has_forgotten_a_running_container_drains_no_gpu(world: World) -> None:
    slot = {("gpushare.dev/a", "GPU-0::3")}
    await world.serving()
    world.kubelet.holders = slot
    run_pod(world, "Running")
    await world.read()
    world.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    world.kubelet.holders = set()
    await world.until(lambda: reached(world)["status"] == "False")
    await world.read()
    assert "but 1 containers" in reached(world)["message"]
    assert world.kubelet.ids() == ["GPU-0::3"]
    assert not world.daemon()["drained"]
    world.kubelet.holders = slot
    await world.until(lambda: reached(world)["status"] == "True")
    await world.read()
    assert not world.daemon()["drained"]
    run_pod(world, "Succeeded")
    world.kubelet.holders = set()
    await world.until(lambda: world.daemon()["drained"])


def run_pod(world: World, phase: str) -> None:
    container = {"name": "app", "resources": {"limits": {"gpushare.dev/a": "1"}}}
    statuses = [{"name": "app", "state": {"running": {}}}]
    pod = {
        "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
        "spec": {"containers": [container]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    world.kube.put(PODS, pod)


def reached(world: World) -> Object:
    return next(item for item in world.status()["conditions"] if item["type"] == "KubeletReachable")


def lose_server(world: World) -> None:
    """It is gone, and nobody brings it back."""
    world.supervised = False
    world.nvml.servers.pop("GPU-0")
