"""The agent's core, from assignments to gates, offers and status."""

import asyncio

import pytest

from gpushare.api.gpunode import ComputeMode, ComputeModes
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS
from gpushare.mps.layout import gpu_dir
from tests.unit.agent.agent_world import SHARE, World, read_wanted


async def test_a_gpunode_is_made_for_the_node_and_tells_its_gpus(world: World) -> None:
    await world.until(lambda: len(world.status().get("gpus", [])) == 2)
    owner = world.kube.objects[GPU_NODES]["n"]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-1")


async def test_an_assigned_gpu_is_taken_verified_gated_and_offered(world: World) -> None:
    await world.serving()
    assert world.kubelet.ids() == [f"GPU-0::{slot}" for slot in range(4)]
    assert world.gates() == ["gpushare.dev-gpu-GPU-0.json"]
    assert world.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS
    assert gpu_dir(world.root, "GPU-0").original_mode.read_text() == "Default\n"
    await world.until(lambda: world.daemon().get("ready"))
    edits = world.kubelet.hooks["gpushare.dev/a"].edits(["GPU-0::1"])
    assert edits.cdi_devices == ("gpushare.dev/gpu=GPU-0",)
    assert edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::1"]) is None
    assert len(world.kubelet.listed["internal.gpushare.dev/mps"]) == 64


async def test_no_gpu_is_taken_beside_a_pod_that_holds_a_whole_one(world: World) -> None:
    containers = [{"name": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    metadata = {"name": "whole", "namespace": "ml", "uid": "w"}
    await world.until(lambda: world.status().get("gpus"))
    world.kube.put(PODS, {"metadata": metadata, "spec": {"containers": containers}})
    await world.until(lambda: world.status().get("foreignHolders"))
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: "pod ml/whole of this node holds nvidia.com/gpu" in world.daemon().get("message", ""))
    assert not gpu_dir(world.root, "GPU-0").wanted.exists()
    assert "GPU-0" not in world.nvml.modes, "its compute mode was set"
    world.kube.remove(PODS, "whole")
    await world.until(lambda: len(world.kubelet.ids()) == 4)


async def test_before_its_daemon_is_verified_a_gpu_is_neither_offered_nor_gated(world: World) -> None:
    world.supervised = False
    await world.until(lambda: world.status().get("gpus"))
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: world.daemon().get("reason") == "Pending")
    await world.until(lambda: "gpushare.dev/a" in world.kubelet.started)
    assert world.kubelet.ids() == []
    assert world.gates() == []
    sentence = await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::1"])
    assert "has not taken this GPU yet" in sentence


async def test_a_server_that_let_go_closes_the_gate_and_withdraws_free_slots_alone(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::2")}
    await world.until(lambda: world.status().get("holders"), 12)
    world.nvml.servers["GPU-0"] = 4711
    await world.until(lambda: world.gates() == [])
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::2"])
    await world.until(lambda: world.daemon()["reason"] == "ServerLetGo")


async def test_changed_limits_of_the_share_reach_daemon_json(world: World) -> None:
    await world.serving()
    clients = {**SHARE["spec"]["clients"], "threads": {"default": 10, "max": 20}}
    world.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await world.until(lambda: read_wanted(world).limits.threads == 20)
    world.kube.remove(GPU_SHARES, "a")
    await world.until(lambda: world.kubelet.ids() == [])
    assert read_wanted(world).limits.threads == 20


async def test_draining_withdraws_waits_for_the_last_container_and_then_says_drained(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    world.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await world.until(lambda: world.kubelet.ids() == ["GPU-0::3"])
    await world.read()
    await world.ticks(3)
    assert not world.daemon()["drained"]
    assert world.gates()
    world.kubelet.holders = set()
    await world.until(lambda: world.daemon()["drained"])


async def test_a_paused_gpu_takes_no_new_pods_until_it_is_paused_no_more(world: World) -> None:
    await world.serving()
    offered = world.kubelet.ids()
    world.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True})
    await world.until(lambda: world.daemon()["drained"])
    assert world.kubelet.ids() == []
    assert world.daemon()["ready"], "it serves those that hold a slot"
    assert world.gates()
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: world.kubelet.ids() == offered)
    await world.until(lambda: not world.daemon()["drained"])


async def test_once_maxwait_is_over_no_container_starts_on_the_gpu(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await world.read()
    since = "2026-01-01T00:00:00Z"
    world.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True, "endClients": True, "waitingSince": since})
    await world.until(lambda: world.gates() == [])
    assert await world.kubelet.hooks["gpushare.dev/a"].not_ready(["GPU-0::0"])
    await world.until(lambda: world.daemon()["reason"] == "Stopping")
    (waiting,) = [it for it in world.status()["conditions"] if it["type"] == "WaitingForClients"]
    assert (waiting["status"], "for pod ns/pod" in waiting["message"]) == ("True", True)
    assert world.status()["holders"] == [{"uuid": "GPU-0", "share": "a", "slots": [0], "pods": ["ns/pod"]}]


async def test_a_released_gpu_is_given_back_as_it_was_found(world: World) -> None:
    await world.serving()
    world.kube.assign()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes["GPU-0"] is ComputeMode.DEFAULT
    assert world.gates() == []
    await world.until(lambda: world.status()["daemons"] == [])


async def test_told_to_leave_compute_modes_it_takes_and_gives_back_gpus_without_touching_any(world: World) -> None:
    await world.stop()
    world.start(ComputeModes.LEAVE)
    await world.serving()
    await world.until(lambda: world.daemon().get("ready"))
    assert world.status()["computeModes"] == "Leave"
    (exclusive,) = [it for it in world.status()["conditions"] if it["type"] == "GpusExclusive"]
    assert (exclusive["status"], exclusive["reason"]) == ("False", "ComputeModeLeft")
    world.kube.assign()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes == {}


async def test_told_to_leave_compute_modes_it_puts_back_what_an_earlier_agent_changed(world: World) -> None:
    await world.serving()
    await world.stop()
    world.start(ComputeModes.LEAVE)
    await world.until(lambda: world.state.unready() is None)
    world.kube.assign()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


async def test_a_gpu_released_while_a_container_holds_a_slot_drains_first(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    world.kube.assign()
    await world.until(lambda: "hold its slots 0" in world.daemon().get("message", ""), 12)
    assert read_wanted(world).stop is False
    world.kubelet.holders = set()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())


async def test_a_lost_gpunode_is_no_news_and_comes_back(world: World) -> None:
    await world.serving()
    world.kube.remove(GPU_NODES, "n")
    await world.until(lambda: "n" in world.kube.objects[GPU_NODES], 10)
    await world.ticks(3)
    assert len(world.kubelet.ids()) == 4
    assert world.gates()


async def test_a_restarted_agent_finds_its_gpus_as_they_were(world: World) -> None:
    await world.serving()
    world.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    closed = False

    async def watch_the_gate() -> None:
        nonlocal closed
        while True:
            closed |= not world.gates()
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch_the_gate())
    await world.stop()
    assert len(world.kubelet.ids()) == 4
    world.start()
    await world.until(lambda: world.state.unready() is None)
    watching.cancel()
    assert not closed
    assert len(world.kubelet.ids()) == 4


async def test_a_release_that_died_midway_goes_on(world: World) -> None:
    await world.serving()
    world.supervised = False
    world.kube.assign()
    await world.until(lambda: read_wanted(world).stop)
    await world.stop()
    world.supervised = True
    world.start()
    await world.until(lambda: not gpu_dir(world.root, "GPU-0").path.exists())
    assert world.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


async def test_without_the_kubelets_word_nothing_is_offered(world: World) -> None:
    await world.stop()
    world.kubelet.down = True
    world.kubelet.started.clear()
    world.start()
    await world.until(lambda: world.status().get("gpus"))
    world.kube.assign({"uuid": "GPU-0", "share": "a"})
    await world.until(lambda: world.gates())
    assert not world.kubelet.started
    world.kubelet.down = False
    await world.until(lambda: len(world.kubelet.ids()) == 4)


async def test_an_idle_node_writes_nothing(world: World) -> None:
    await world.serving()
    await world.until(lambda: world.daemon().get("ready"))
    await world.until(lambda: "WithinGrants" in [item["type"] for item in world.status()["conditions"]])
    await world.ticks(5)
    written = world.kube.status_writes
    await world.ticks(12)
    assert world.kube.status_writes == written


async def test_two_slots_for_one_container_are_refused_with_the_reason(world: World) -> None:
    await world.serving()
    with pytest.raises(LookupError, match="write a limit of 1"):
        world.kubelet.hooks["gpushare.dev/a"].edits(["GPU-0::1", "GPU-0::2"])
