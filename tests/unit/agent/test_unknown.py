"""What an agent does and says before it knows: nothing is taken, ended or told because its news have not come yet."""

import asyncio

import pytest

from gpushare.agent.health import REFUSED_SECONDS
from gpushare.agent.reconcile import daemon_files
from gpushare.agent.reconcile.lifecycle import remove
from gpushare.agent.status.status import WAITING_FOR_CLIENTS
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import GpuNode
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS, KubeError, Object
from gpushare.kube.resources import LEASES
from gpushare.mps.clock import boot_clock
from gpushare.mps.layout import gpu_dir
from gpushare.planner.model import NodeView
from gpushare.planner.selection.refusals import FoundGpu, foreign_compute_mode
from tests.unit.agent.fake_node import SHARE, FakeNode
from tests.unit.agent.observed_pods import uid
from tests.unit.agent.reconcile.test_whole_gpus import NVIDIA, giving

CONTAINER = "ab" * 32
FRACTION = "900000.000000001Ti"
"""No whole number of bytes, which the schema's floats do not see."""
SETTLE_SECONDS = 2.5
"""Time for all that an agent would do by mistake: several of its turns and reports."""
STATUS_SECONDS = 0.6
"""More than a fake node's agent waits between two writes of its status."""


def pod(resource: str) -> Object:
    """One that runs, with one of the resource."""
    begun = "2026-01-01T00:00:00Z"
    running = {"name": "app", "containerID": f"containerd://{CONTAINER}", "state": {"running": {"startedAt": begun}}}
    return {
        "metadata": {"name": "pod", "namespace": "ns", "uid": uid(1)},
        "spec": {"containers": [{"name": "app", "resources": {"limits": {resource: "1"}}}]},
        "status": {
            "phase": "Running",
            "startTime": begun,
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [running],
        },
    }


async def restart_without_pods(node: FakeNode) -> None:
    """The next agent has all but the list of this node's pods."""
    await node.stop()
    node.kube.fail("list pods", KubeError(503, "", "starting"))
    node.start()
    await node.until(lambda: node.latest.decisions is not None and node.readings.cache.informed)


async def held_whole(node: FakeNode) -> None:
    """GPU-0 is assigned, and not taken, since a pod holds a whole GPU."""
    await node.until(lambda: node.status().get("gpus"))
    node.kube.put(PODS, pod("nvidia.com/gpu"))
    await node.until(lambda: node.status().get("foreignHolders"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "a pod of this node holds nvidia.com/gpu" in node.daemon().get("message", ""))


async def test_no_gpu_is_taken_before_it_is_known_who_holds_whole_ones(node: FakeNode) -> None:
    await held_whole(node)
    await restart_without_pods(node)
    await node.until(lambda: "not known yet whether a pod" in node.daemon().get("message", ""))
    assert not gpu_dir(node.root, "GPU-0").wanted.exists()
    assert "GPU-0" not in node.nvml.modes


async def test_whole_gpu_holders_in_the_api_stay_until_pods_are_known(node: FakeNode) -> None:
    await held_whole(node)
    await restart_without_pods(node)
    await asyncio.sleep(SETTLE_SECONDS)
    assert node.status()["foreignHolders"]


async def test_maxwait_ends_no_client_before_its_pod_is_known(node: FakeNode) -> None:
    await node.serving()
    client = pod("gpushare.dev/a")
    node.kube.put(PODS, client)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    node.client(77, 500, client)
    (node.proc / "77" / "status").write_text("Name: python\nSigCgt: 0\nPPid: 1\n")
    await node.read()
    await node.stop()
    node.kube.assign(
        {
            "uuid": "GPU-0",
            "share": "a",
            "draining": True,
            "terminateClients": True,
            "waitingSince": "2026-01-01T00:00:00Z",
        }
    )
    node.recorder.events.clear()
    await restart_without_pods(node)
    await asyncio.sleep(SETTLE_SECONDS)
    assert node.daemons.asked == []
    node.kube.heal()
    await node.until(lambda: node.daemons.asked)
    told = {item.reason for item in node.recorder.events}
    assert EventReason.MAX_WAIT_EXPIRED in told


async def test_an_agent_whose_first_status_is_refused_is_not_ready(
    node: FakeNode,
) -> None:
    await node.stop()
    node.kube.fail("apply gpunodes/n/status", KubeError(422, "Invalid", "status.x: Unsupported value"))
    node.start()
    await node.until(lambda: node.running.status.unreported_since is not None)
    await asyncio.sleep(SETTLE_SECONDS)
    assert node.health.unready() is not None
    assert not node.kube.has(LEASES, "n")


async def test_an_agent_whose_later_status_is_refused_renews_no_heartbeat(node: FakeNode) -> None:
    await node.serving()
    node.kube.fail("apply gpunodes/n/status", KubeError(422, "Invalid", "status.x: Unsupported value"))
    node.kube.assign()
    await node.until(lambda: node.running.status.unreported_since is not None)
    assert (node.health.not_working(), node.health.unready()) == (None, None), "the next attempt may succeed"
    node.running.status.unreported_since = boot_clock() - REFUSED_SECONDS - 1
    assert "has taken no status for 16 s" in str(node.health.not_working())
    assert "has taken no status for 16 s" in str(node.health.unready())
    assert node.health.unhealthy() is None, "a restart would not help"
    node.kube.heal()
    await node.until(lambda: node.running.status.unreported_since is None)
    assert node.health.not_working() is None


async def test_who_is_waited_for_stays_until_the_kubelet_is_read(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.read()
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True, "waitingSince": "2026-01-01T00:00:00Z"})

    def said() -> str:
        conditions = node.status().get("conditions", [])
        return next((item["message"] for item in conditions if item["type"] == WAITING_FOR_CLIENTS), "")

    await node.until(lambda: "for pod ns/pod" in said())
    await node.stop()
    node.kubelet.down = True
    node.start()
    await asyncio.sleep(SETTLE_SECONDS)
    assert "for pod ns/pod" in said()


async def test_a_whole_gpu_is_not_judged_before_the_kubelet_tells_its_holder(node: FakeNode) -> None:
    await giving(node)
    node.kubelet.holders = {(NVIDIA, "GPU-0")}
    node.kube.put(PODS, pod(NVIDIA))
    node.process(77, uid(1), CONTAINER)
    node.nvml.servers["GPU-0"] = 77
    await node.read()
    await node.until(lambda: "GPU-0" in node.observed)
    await node.stop()
    node.kubelet.down = True
    node.start()
    await node.until(lambda: node.running.observer.unused is not None)
    assert "GPU-0" not in node.observed
    node.kubelet.down = False
    await node.until(lambda: "GPU-0" in node.observed)


async def test_gpus_stay_as_the_api_has_them_until_nvml_has_answered_once(node: FakeNode) -> None:
    await node.serving()
    await node.until(lambda: node.daemon().get("ready"))
    known = {key: node.status()[key] for key in ("gpus", "driverVersion", "cudaVersion", "clientCeiling")}
    await node.stop()
    node.nvml.unloaded = True
    node.start()
    await node.until(lambda: not node.daemon().get("ready"))
    assert {key: node.status().get(key) for key in known} == known


async def test_no_status_takes_the_agents_own_compute_mode_for_somebody_elses(node: FakeNode) -> None:
    """Neither before a tick has read the GPU's directory again, nor before NVML is read again."""
    await node.until(lambda: node.status().get("gpus"))
    assert node.agent is not None
    report = next(loop.work for loop in node.agent.loops() if loop.name == "report")
    await node.stop()
    directory = gpu_dir(node.root, "GPU-0")

    async def reported(mode: ComputeMode) -> str | None:
        read = node.readings.cache.nodes.objects  # a status that says what was last read is not written
        assert read
        read.update(dict.fromkeys(read, node.kube.live(GPU_NODES, "n")))
        await node.readings.inventory.set_mode("GPU-0", mode)
        await asyncio.sleep(STATUS_SECONDS)
        await report()
        stored = GpuNode.model_validate({"metadata": {"name": "n"}, "status": node.status()})
        gpu = stored.status.gpus[0]
        assert gpu.compute_mode is mode
        return foreign_compute_mode(FoundGpu(NodeView("n", {}, True, frozenset(), stored), gpu, False))

    daemon_files.prepare(directory)
    daemon_files.write_original_mode(directory, ComputeMode.DEFAULT)
    assert await reported(ComputeMode.EXCLUSIVE_PROCESS) is None
    remove(directory)
    assert await reported(ComputeMode.DEFAULT) is None


@pytest.mark.parametrize(
    "spec",
    [{"memory": {"default": FRACTION, "max": "16Gi"}}, {"memory": {"default": "1Gi", "max": FRACTION}}],
    ids=["what a client gets", "the most that one gets"],
)
async def test_a_share_with_an_amount_that_cannot_be_read_is_as_one_not_known(node: FakeNode, spec: Object) -> None:
    """As a share that another release wrote: its GPUs stay as they are, and no agent ends."""
    await node.serving()
    clients = {**SHARE["spec"]["clients"], **spec}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await node.until(lambda: node.decided["GPU-0"].share is None)
    await node.ticks(2)
    assert node.decided["GPU-0"].plan.limits is not None
    node.kube.put(GPU_SHARES, SHARE)
    await node.until(lambda: len(node.kubelet.ids()) == 4)
