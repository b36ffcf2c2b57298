"""GPUs that one agent gives whole: one device each, no MPS, and both ways between shared and whole."""

import asyncio
import json
from typing import Any

import pytest

from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.api.compute_mode import ComputeMode
from gpushare.kube.client import GPU_SHARES, PODS, Object
from tests.unit.agent.conftest import FakeNvml
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import uid

NVIDIA = "nvidia.com/gpu"
WHOLE: Object = {"metadata": {"name": "w", "uid": "w"}, "spec": {"wholeGpus": {"resourceName": NVIDIA}}}
BOTH = [{"uuid": "GPU-0", "share": "w"}, {"uuid": "GPU-1", "share": "w"}]


def offered(node: FakeNode, resource: str = NVIDIA) -> list[str]:
    """Ids that the kubelet may give to a container."""
    return sorted(item.id for item in node.kubelet.listed.get(resource, []) if item.healthy)


def edits(node: FakeNode, index: int) -> Any:
    return json.loads((node.cdi / f"gpushare.dev-gpu-GPU-{index}.json").read_text())["devices"][0]["containerEdits"]


def daemons(node: FakeNode) -> dict[str, Object]:
    return {item["uuid"]: item for item in node.status().get("daemons") or []}


def of_w(draining: bool = False) -> list[Object]:
    return [{**item, "draining": draining} for item in BOTH]


async def giving(node: FakeNode) -> None:
    """Both GPUs are offered whole."""
    node.kube.put(GPU_SHARES, WHOLE)
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign(*BOTH)
    await node.until(lambda: offered(node) == ["GPU-0", "GPU-1"])


async def test_a_whole_gpu_is_one_device_without_mps_and_without_a_compute_mode(node: FakeNode) -> None:
    await giving(node)
    await node.until(lambda: all(item["ready"] for item in daemons(node).values()) and len(daemons(node)) == 2)
    assert {item["resource"] for item in daemons(node).values()} == {NVIDIA}
    assert "desiredLimits" not in daemons(node)["GPU-0"]
    assert node.nvml.modes == {}
    assert sorted(path.name for path in node.root.glob("GPU-*/*")) == ["whole.json", "whole.json"]
    device = edits(node, 0)
    assert device["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [mount["containerPath"] for mount in device["mounts"]] == ["/sim/dev/nvidia0"]


async def test_one_container_gets_several(node: FakeNode) -> None:
    await giving(node)
    (gpus,) = node.kubelet.kinds[NVIDIA]
    assert gpus.prefer(["GPU-1", "GPU-0"], [], 2) == ["GPU-0", "GPU-1"]
    assert gpus.edits(["GPU-0", "GPU-1"]).cdi_devices == ("gpushare.dev/gpu=GPU-0", "gpushare.dev/gpu=GPU-1")
    assert gpus.not_ready(["GPU-0", "GPU-1"]) is None
    with pytest.raises(LookupError, match="GPU-7 of node n is not given whole as"):
        gpus.edits(["GPU-0", "GPU-7"])


async def test_a_share_without_a_name_gives_them_under_its_own(node: FakeNode) -> None:
    node.kube.put(GPU_SHARES, {**WHOLE, "spec": {"wholeGpus": {}}})
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign(*BOTH)
    await node.until(lambda: offered(node, "gpushare.dev/w") == ["GPU-0", "GPU-1"])
    assert node.kubelet.edits(["GPU-1"], "gpushare.dev/w").cdi_devices == ("gpushare.dev/gpu=GPU-1",)


async def test_the_containers_that_have_gpus_are_reported(node: FakeNode) -> None:
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0"), (NVIDIA, "GPU-1")}
    await node.until(lambda: len(node.status().get("holders") or []) == 2)
    assert node.status()["holders"][0] == {"uuid": "GPU-0", "share": "w", "slots": [0], "pods": ["ns/pod"]}


async def test_a_pod_that_asks_for_whole_gpus_of_ours_is_nobody_else_s(node: FakeNode) -> None:
    await giving(node)
    container = {"name": "app", "resources": {"limits": {NVIDIA: "1"}}}
    pod = {
        "metadata": {"namespace": "ns", "name": "pod", "uid": "u"},
        "spec": {"containers": [container]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }
    node.kube.put(PODS, pod)
    await node.ticks(3)
    assert not node.status().get("foreignHolders")


async def test_a_restarted_agent_serves_held_gpus_without_the_api_server(
    node: FakeNode,
) -> None:
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0")}
    await node.read()
    await node.stop()
    node.kubelet.started.clear()
    node.kube.down = True
    gates = node.gates()
    node.start()
    assert node.gates() == gates
    node.kube.down = False
    await node.until(lambda: offered(node) == ["GPU-0", "GPU-1"], seconds=20)
    assert node.gates() == gates
    assert node.running.held("w", "GPU-0") == {0}


async def test_a_gpu_that_a_container_has_is_given_back_only_after_it(node: FakeNode) -> None:
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0")}
    await node.read()
    node.kube.assign(*of_w(draining=True))
    await node.until(lambda: daemons(node)["GPU-1"].get("drained"))
    assert not daemons(node)["GPU-0"].get("drained")
    assert offered(node) == ["GPU-0"], "the kubelet would refuse its container's restart"
    node.kube.assign()
    await node.until(lambda: "GPU-1" not in daemons(node))
    assert "a container has it" in daemons(node)["GPU-0"]["message"]
    assert node.gates() == ["gpushare.dev-gpu-GPU-0.json"], "its container may start again"
    node.kubelet.holders = set()
    await node.until(lambda: not daemons(node))
    assert node.gates() == []
    assert list(node.root.glob("GPU-*")) == []


async def test_a_gpu_goes_from_shared_to_whole_and_back(node: FakeNode) -> None:
    await node.serving()
    node.kube.put(GPU_SHARES, WHOLE)
    node.kube.assign({"uuid": "GPU-0", "share": "w"})
    await node.until(lambda: offered(node) == ["GPU-0"])
    assert node.nvml.modes["GPU-0"] is ComputeMode.DEFAULT
    assert edits(node, 0)["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert not (node.root / "GPU-0" / "daemon.json").exists()
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: len(node.kubelet.ids()) == 4)
    assert node.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS
    assert offered(node) == []
    assert not (node.root / "GPU-0" / "whole.json").exists()


async def test_an_unreached_gpu_gets_its_mode_back_before_it_is_given_whole(node: FakeNode, nvml: FakeNvml) -> None:
    await node.serving()
    nvml.lost.add("GPU-0")
    node.kube.put(GPU_SHARES, WHOLE)
    node.kube.assign({"uuid": "GPU-0", "share": "w"})
    await node.until(lambda: "NVML does not reach this GPU" in node.daemon().get("message", ""))
    assert not (node.root / "GPU-0" / "whole.json").exists()
    nvml.lost.clear()
    await node.until(lambda: offered(node) == ["GPU-0"])
    assert nvml.modes["GPU-0"] is ComputeMode.DEFAULT
    assert [path.name for path in (node.root / "GPU-0").iterdir()] == ["whole.json"]


async def test_a_gpu_whose_slot_is_held_is_not_given_whole_yet(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.read()
    node.kube.put(GPU_SHARES, WHOLE)
    node.kube.assign({"uuid": "GPU-0", "share": "w"})
    await node.ticks(5)
    assert offered(node) == []
    assert (node.root / "GPU-0" / "daemon.json").exists()


def others(node: FakeNode, resource: str, *ids: str) -> None:
    """Another device plugin offers these."""

    class OtherService:
        devices = [OfferedDevice(device_id, True, None) for device_id in ids]  # noqa: RUF012

    node.kubelet.services[resource] = OtherService()  # type: ignore[assignment]
    node.kubelet.started.add(resource)


async def test_a_name_of_another_plugin_is_told_and_not_taken_over(node: FakeNode) -> None:
    others(node, NVIDIA, "GPU-0", "GPU-5")
    node.kube.put(GPU_SHARES, WHOLE)
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign(*BOTH)
    await node.until(lambda: daemons(node).get("GPU-0", {}).get("reason") == "ResourceNameTaken")
    assert NVIDIA not in node.kubelet.kinds, "a plugin of ours has registered"
    assert node.gates() == []
    node.kube.assign(BOTH[1])
    await node.until(lambda: list(daemons(node)) == ["GPU-1"], seconds=10)
    node.kubelet.started.discard(NVIDIA)
    await node.until(lambda: offered(node) == ["GPU-1"])


async def test_a_name_by_which_a_container_has_a_gpu_of_ours_stays_ours(node: FakeNode) -> None:
    """The agent was away, and somebody installed another plugin meanwhile."""
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0")}
    await node.read()
    await node.stop()
    node.kubelet.kinds.clear()
    others(node, NVIDIA, "GPU-0", "GPU-5")
    node.start()
    await node.until(lambda: NVIDIA in node.kubelet.kinds)
    assert len(node.gates()) == 2


async def test_a_lost_gpu_is_offered_to_nobody(node: FakeNode, nvml: FakeNvml) -> None:
    await giving(node)
    nvml.lost.add("GPU-1")
    await node.until(lambda: offered(node) == ["GPU-0"])
    await node.until(lambda: daemons(node)["GPU-1"]["reason"] == "GpuLost")


async def test_an_unreadable_file_is_written_again_and_takes_no_gpu_from_anybody(node: FakeNode) -> None:
    await giving(node)
    file = node.root / "GPU-0" / "whole.json"
    file.write_text("{")
    await node.until(lambda: file.read_text() != "{" and offered(node) == ["GPU-0", "GPU-1"])


async def test_a_stranger_on_a_whole_gpu_is_a_finding_and_its_holder_is_none(node: FakeNode, nvml: FakeNvml) -> None:
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0")}
    container = {"name": "app", "resources": {"limits": {NVIDIA: "1"}}}
    statuses = [{"name": "app", "containerID": f"containerd://{'ab' * 32}", "state": {"running": {}}}]
    node.kube.put(
        PODS,
        {
            "metadata": {"namespace": "ns", "name": "pod", "uid": uid(1)},
            "spec": {"containers": [container]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses},
        },
    )
    node.process(71, uid(1), "ab" * 32)
    nvml.servers["GPU-0"] = 71
    await node.until(lambda: "GPU-0" in node.observed and node.observed["GPU-0"].usages)
    (usage,) = node.observed["GPU-0"].usages
    assert (usage.pod, usage.container, usage.slot) == ("pod", "app", True)
    assert not node.status()["gpus"][0].get("foreignProcesses")
    node.kubelet.holders = {(NVIDIA, "GPU-1")}
    await node.until(lambda: not node.observed["GPU-0"].usages[0].slot)


async def test_a_gpu_being_taken_for_clients_is_not_given_whole_yet(
    node: FakeNode,
) -> None:
    """NVML may take seconds to tell a compute mode. Its answer would make an MPS daemon on a container's whole GPU."""
    node.kube.put(GPU_SHARES, WHOLE)
    await node.until(lambda: node.status().get("gpus"))
    asked, goes_on, mode = asyncio.Event(), asyncio.Event(), node.readings.inventory.mode

    async def slowly(uuid: str) -> ComputeMode:
        current = await mode(uuid)
        asked.set()
        await goes_on.wait()
        return current

    node.readings.inventory.mode = slowly  # type: ignore[method-assign]
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await asked.wait()
    node.kube.assign({"uuid": "GPU-0", "share": "w"})
    with pytest.raises(AssertionError, match="not within"):
        await node.until(lambda: offered(node), seconds=1.0)
    goes_on.set()
    await node.until(lambda: offered(node) == ["GPU-0"])
    assert sorted(path.name for path in (node.root / "GPU-0").iterdir()) == ["whole.json"]
