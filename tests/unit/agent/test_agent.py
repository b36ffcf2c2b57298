"""The agent's core, from assignments to gates, offers and status."""

import asyncio
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpushare.agent.reconcile import daemon_files
from gpushare.agent.status.meters import NodeMeters
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.cli.agent import unfit
from gpushare.kube.client import GPU_NODES, GPU_SHARES, PODS
from gpushare.kube.resources import LEASES
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir, gpu_dir
from gpushare.mps.wire import BrokerState, DaemonState
from tests.unit.agent.fake_node import SHARE, FakeNode, read_wanted
from tests.unit.few_files import no_descriptors
from tests.unit.small_disk import no_room, read_only, small_disk


@pytest.mark.parametrize(
    ("node", "pid", "words"),
    [("n", 4711, ""), (None, 4711, "NODE_NAME"), ("", 4711, "NODE_NAME"), ("n", 1, "has changed its pod's hostPID")],
)
def test_where_it_could_guard_nobody_the_agent_does_not_start(node: str | None, pid: int, words: str) -> None:
    problem = unfit(node, pid)
    assert (words in problem) if words else problem == ""


async def test_a_gpunode_is_made_for_the_node_and_lists_its_gpus(node: FakeNode) -> None:
    await node.until(lambda: len(node.status().get("gpus", [])) == 2)
    owner = node.kube.live(GPU_NODES, "n")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-1")


async def test_an_assigned_gpu_is_taken_verified_gated_and_offered(node: FakeNode) -> None:
    await node.serving()
    assert node.kubelet.ids() == [f"GPU-0::{slot}" for slot in range(4)]
    assert node.gates() == ["gpushare.dev-gpu-GPU-0.json"]
    assert node.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS
    assert gpu_dir(node.root, "GPU-0").original_mode.read_text() == "Default\n"
    await node.until(lambda: node.daemon().get("ready"))
    edits = node.kubelet.edits(["GPU-0::1"])
    assert edits.cdi_devices == ("gpushare.dev/gpu=GPU-0",)
    assert edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert node.kubelet.not_ready(["GPU-0::1"]) is None
    assert len(node.kubelet.listed["internal.gpushare.dev/mps"]) == 64


async def test_no_gpu_is_taken_beside_a_pod_that_holds_a_whole_one(node: FakeNode) -> None:
    containers = [{"name": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    metadata = {"name": "whole", "namespace": "ml", "uid": "w"}
    await node.until(lambda: node.status().get("gpus"))
    bound = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    node.kube.put(PODS, {"metadata": metadata, "spec": {"containers": containers}, "status": bound})
    await node.until(lambda: node.status().get("foreignHolders"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "a pod of this node holds nvidia.com/gpu" in node.daemon().get("message", ""))
    assert not gpu_dir(node.root, "GPU-0").wanted.exists()
    assert "GPU-0" not in node.nvml.modes, "its compute mode was set"
    node.kube.remove(PODS, "whole")
    await node.until(lambda: len(node.kubelet.ids()) == 4)


async def test_no_gpu_is_taken_beside_a_pod_that_has_one_by_nvidias_driver(node: FakeNode) -> None:
    """NVIDIA's DRA driver may be off the node already, and its ResourceSlice gone: the claim is still the pod's."""
    node.kubelet.holders = {("gpu.nvidia.com", "gpu-0")}
    await node.until(lambda: node.status().get("gpus"))
    bound = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    metadata = {"name": "pod", "namespace": "ns", "uid": "w"}
    node.kube.put(PODS, {"metadata": metadata, "spec": {"containers": [{"name": "app"}]}, "status": bound})
    await node.until(lambda: node.status().get("foreignHolders"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "a pod of this node holds gpu.nvidia.com" in node.daemon().get("message", ""))
    assert "GPU-0" not in node.nvml.modes, "its compute mode was set"
    node.kubelet.holders = set()
    await node.until(lambda: len(node.kubelet.ids()) == 4)


async def test_gpus_of_shares_that_nvidias_driver_offers_too_are_told(node: FakeNode) -> None:
    def told() -> list[tuple[str, str]]:
        conditions = node.status()["conditions"]
        return [(item["status"], item["reason"]) for item in conditions if item["type"] == "GpusExclusive"]

    await node.serving()
    await node.until(lambda: node.daemon().get("ready"))
    assert told() == []
    registered = node.root.parent / "kubelet/plugins_registry/gpu.nvidia.com-reg.sock"
    registered.parent.mkdir(parents=True, exist_ok=True)
    registered.touch()
    await node.until(lambda: told() == [("False", "HeldByNvidiaDra")])
    assert len(node.kubelet.ids()) == 4, "what the share has it keeps, and its clients with it"
    registered.unlink()
    await node.until(lambda: told() == [("True", "ExclusiveProcess")])


async def test_before_its_daemon_is_verified_a_gpu_is_neither_offered_nor_gated(node: FakeNode) -> None:
    node.supervised = False
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: node.daemon().get("reason") == "Pending")
    await node.until(lambda: "gpushare.dev/a" in node.kubelet.started)
    assert node.kubelet.ids() == []
    assert node.gates() == []
    sentence = node.kubelet.not_ready(["GPU-0::1"])
    assert "has not taken this GPU yet" in sentence


async def test_a_lost_server_closes_the_gate_and_withdraws_free_slots(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::2")}
    await node.until(lambda: node.status().get("holders"), 12)
    node.nvml.servers["GPU-0"] = 4711
    await node.until(lambda: node.gates() == [])
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::2"])
    await node.until(lambda: node.daemon()["reason"] == "ServerContextLost")


async def test_changed_limits_of_the_share_reach_daemon_json(node: FakeNode) -> None:
    await node.serving()
    clients = {**SHARE["spec"]["clients"], "threads": {"default": 10, "max": 20}}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": clients}})
    await node.until(lambda: read_wanted(node).limits.threads == 20)
    node.kube.remove(GPU_SHARES, "a")
    await node.until(lambda: node.kubelet.ids() == [])
    assert read_wanted(node).limits.threads == 20


async def test_a_draining_gpu_is_drained_after_its_last_container(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::3")}
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::3"])
    await node.read()
    await node.ticks(3)
    assert not node.daemon()["drained"]
    assert node.gates()
    node.kubelet.holders = set()
    await node.until(lambda: node.daemon()["drained"])


async def test_a_paused_gpu_takes_no_new_pods_until_it_is_paused_no_more(node: FakeNode) -> None:
    await node.serving()
    offered = node.kubelet.ids()
    node.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True})
    await node.until(lambda: node.daemon()["drained"])
    assert node.kubelet.ids() == []
    assert node.daemon()["ready"], "it serves those that hold a slot"
    assert node.gates()
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: node.kubelet.ids() == offered)
    await node.until(lambda: not node.daemon()["drained"])


async def test_once_maxwait_is_over_no_container_starts_on_the_gpu(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.read()
    since = "2026-01-01T00:00:00Z"
    node.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True, "terminateClients": True, "waitingSince": since})
    await node.until(lambda: node.gates() == [])
    assert node.kubelet.not_ready(["GPU-0::0"])
    await node.until(lambda: node.daemon()["reason"] == "Stopping")
    (waiting,) = [item for item in node.status()["conditions"] if item["type"] == "WaitingForClients"]
    assert (waiting["status"], "for pod ns/pod" in waiting["message"]) == ("True", True)
    assert node.status()["holders"] == [{"uuid": "GPU-0", "share": "a", "slots": [0], "pods": ["ns/pod"]}]


async def test_a_released_gpu_is_given_back_as_it_was_found(node: FakeNode) -> None:
    await node.serving()
    node.kube.assign()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())
    assert node.nvml.modes["GPU-0"] is ComputeMode.DEFAULT
    assert node.gates() == []
    await node.until(lambda: node.status()["daemons"] == [])


async def test_an_agent_that_leaves_compute_modes_changes_none(node: FakeNode) -> None:
    await node.stop()
    node.start(ComputeModePolicy.LEAVE)
    await node.serving()
    await node.until(lambda: node.daemon().get("ready"))
    assert node.status()["computeModePolicy"] == "Leave"
    (exclusive,) = [item for item in node.status()["conditions"] if item["type"] == "GpusExclusive"]
    assert (exclusive["status"], exclusive["reason"]) == ("False", "ComputeModeLeft")
    node.kube.assign()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())
    assert node.nvml.modes == {}


async def test_an_agent_that_leaves_modes_restores_an_earlier_agents(node: FakeNode) -> None:
    await node.serving()
    await node.stop()
    node.start(ComputeModePolicy.LEAVE)
    await node.until(lambda: node.health.unready() is None)
    node.kube.assign()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())
    assert node.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


async def test_a_gpu_released_while_a_container_holds_a_slot_drains_first(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    node.kube.assign()
    await node.until(lambda: "hold its slots 0" in node.daemon().get("message", ""), 12)
    assert read_wanted(node).stop is False
    node.kubelet.holders = set()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())


async def test_a_lost_gpunode_changes_nothing_and_comes_back(node: FakeNode) -> None:
    await node.serving()
    node.kube.remove(GPU_NODES, "n")
    await node.until(lambda: node.kube.has(GPU_NODES, "n"), 10)
    await node.ticks(3)
    assert len(node.kubelet.ids()) == 4
    assert node.gates()


async def test_a_restarted_agent_finds_its_gpus_as_they_were(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    closed = False

    async def watch_the_gate() -> None:
        nonlocal closed
        while True:
            closed |= not node.gates()
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch_the_gate())
    await node.stop()
    assert len(node.kubelet.ids()) == 4
    node.start()
    await node.until(lambda: node.health.unready() is None)
    watching.cancel()
    assert not closed
    assert len(node.kubelet.ids()) == 4


async def test_a_release_that_died_midway_goes_on(node: FakeNode) -> None:
    await node.serving()
    node.supervised = False
    node.kube.assign()
    await node.until(lambda: read_wanted(node).stop)
    await node.stop()
    node.supervised = True
    node.start()
    await node.until(lambda: not gpu_dir(node.root, "GPU-0").path.exists())
    assert node.nvml.modes["GPU-0"] is ComputeMode.DEFAULT


async def left_behind(node: FakeNode, stopped: bool | None) -> GpuDir:
    """GPU-0 is given back, and its supervisor, which has `stopped`, wrote its state while the directory was removed;
    None: it did not, and the agent died before the last step.
    """
    await node.until(lambda: node.status().get("gpus"))
    await node.stop()
    directory = gpu_dir(node.root, "GPU-0")
    directory.path.mkdir()
    if stopped is not None:
        write_model(
            directory.state,
            DaemonState(uuid="GPU-0", share="a", heartbeat=1.0, reason=DaemonReason.STOPPING, stopped=stopped),
        )
    return directory


@pytest.mark.parametrize("stopped", [True, None], ids=["the supervisor wrote once more", "the agent died"])
async def test_what_is_left_of_a_gpu_that_was_given_back_is_removed(node: FakeNode, stopped: bool | None) -> None:
    directory = await left_behind(node, stopped)
    node.kube.assign()
    node.start()
    await node.until(lambda: not directory.path.exists())


async def test_a_directory_in_which_a_supervisor_goes_on_stays(node: FakeNode) -> None:
    directory = await left_behind(node, stopped=False)
    node.kube.assign()
    node.start()
    await node.ticks(3)
    assert node.latest.decisions.given.assignments == ()
    assert directory.state.exists()


async def left_midway(node: FakeNode) -> GpuDir:
    """The agent has died after it changed GPU-0's compute mode, and before the GPU was taken."""
    await node.until(lambda: node.status().get("gpus"))
    await node.stop()
    directory = gpu_dir(node.root, "GPU-0")
    daemon_files.prepare(directory)
    daemon_files.write_original_mode(directory, ComputeMode.PROHIBITED)
    node.nvml.modes["GPU-0"] = ComputeMode.EXCLUSIVE_PROCESS
    return directory


async def test_a_gpu_left_midway_and_unassigned_gets_its_mode_back(
    node: FakeNode,
) -> None:
    directory = await left_midway(node)
    node.kube.assign()
    node.start()
    await node.until(lambda: not directory.path.exists())
    assert node.nvml.modes["GPU-0"] is ComputeMode.PROHIBITED


async def test_a_gpu_left_midway_is_taken_while_it_is_assigned(node: FakeNode) -> None:
    directory = await left_midway(node)
    node.start()
    await node.serving()
    assert daemon_files.original_mode(directory) is ComputeMode.PROHIBITED


async def test_a_gpu_left_midway_waits_for_the_api_server(node: FakeNode) -> None:
    await left_midway(node)
    node.start()
    await node.ticks(3)
    assert node.latest.decisions.given.assignments is None
    assert node.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS


async def test_a_cdi_spec_that_cannot_be_written_withdraws_its_gpu_and_no_other(node: FakeNode) -> None:
    in_the_way = node.cdi / "gpushare.dev-gpu-GPU-0.json" / "something"
    in_the_way.mkdir(parents=True)
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"}, {"uuid": "GPU-1", "share": "a"})
    await node.until(lambda: node.kubelet.ids() == [f"GPU-1::{slot}" for slot in range(4)])
    assert node.gates() == ["gpushare.dev-gpu-GPU-0.json", "gpushare.dev-gpu-GPU-1.json"]
    await node.until(lambda: "its CDI spec cannot be changed" in node.daemon().get("message", ""))
    await node.ticks(2)
    assert node.health.unhealthy() is None
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    await node.until(lambda: len(node.kubelet.ids()) == 8)


async def test_a_gpu_directory_that_cannot_be_written_holds_up_no_other_gpu(node: FakeNode) -> None:
    await node.serving()
    directory = gpu_dir(node.root, "GPU-0")
    shutil.rmtree(directory.broker)
    directory.attach.rmdir()
    directory.attach.touch()
    node.kube.assign({"uuid": "GPU-0", "share": "a"}, {"uuid": "GPU-1", "share": "a"})
    await node.until(lambda: "GPU-1::0" in node.kubelet.ids())
    await node.until(lambda: "its files cannot be written" in node.daemon().get("message", ""))


@pytest.mark.parametrize(("starved", "error"), [(no_room, "No space left"), (read_only, "Read-only file system")])
async def test_an_agent_on_a_full_disk_says_so_and_recovers(
    node: FakeNode, starved: Callable[[Path], AbstractContextManager[None]], error: str
) -> None:
    with small_disk(node.root):
        await node.until(lambda: node.status().get("gpus"))
        with starved(node.root):
            node.kube.assign({"uuid": "GPU-0", "share": "a"})
            await node.until(lambda: error in node.daemon().get("message", ""))
            await node.ticks(2)
            assert node.health.unhealthy() is None
        await node.until(lambda: len(node.kubelet.ids()) == 4, seconds=20.0)
        await node.stop()


@pytest.mark.parametrize(("starved", "error"), [(no_room, "No space left"), (read_only, "Read-only file system")])
async def test_a_gpu_whose_cdi_spec_cannot_be_written_is_not_ready_until_it_can(
    node: FakeNode, starved: Callable[[Path], AbstractContextManager[None]], error: str
) -> None:
    node.cdi.mkdir()
    with small_disk(node.cdi):
        await node.until(lambda: node.status().get("gpus"))
        with starved(node.cdi):
            node.kube.assign({"uuid": "GPU-0", "share": "a"})
            await node.until(lambda: error in node.daemon().get("message", ""))
            assert (node.daemon()["reason"], node.daemon()["ready"]) == ("GateNotOpen", False)
            why = node.kubelet.not_ready(["GPU-0::1"])
            assert "GateNotOpen" in why, "a container would start"
            await node.ticks(2)
            assert node.kubelet.ids() == []
            assert {path.name for path in node.cdi.iterdir()} <= {"filler"}, "something half written stayed"
            assert node.health.unhealthy() is None
        await node.until(lambda: len(node.kubelet.ids()) == 4)
        await node.until(lambda: node.daemon().get("ready"))
        await node.stop()


async def test_a_serving_gpu_goes_on_where_no_cdi_spec_can_be_changed(
    node: FakeNode,
) -> None:
    node.cdi.mkdir()
    with small_disk(node.cdi):
        await node.serving()
        with read_only(node.cdi):
            await node.ticks(3)
            assert node.daemon()["ready"], "its spec is as it should be"
            node.nvml.lost.add("GPU-0")
            await node.until(lambda: "Read-only file system" in node.daemon().get("message", ""))
            assert (node.daemon()["reason"], len(node.gates())) == ("GpuLost", 1)
        await node.until(lambda: not node.gates())
        await node.stop()


async def test_a_cdi_directory_that_is_none_closes_the_gate_while_that_lasts(node: FakeNode) -> None:
    await node.serving()
    node.cdi.rename(node.cdi.with_name("elsewhere"))
    node.cdi.symlink_to(node.cdi)
    await node.until(lambda: node.daemon().get("reason") == "GateNotOpen")
    assert not node.daemon().get("ready")
    assert node.health.unhealthy() is None
    node.cdi.unlink()
    await node.until(lambda: node.gates() == ["gpushare.dev-gpu-GPU-0.json"])
    await node.until(lambda: node.daemon().get("ready"))


async def test_a_cdi_directory_that_cannot_be_read_ends_no_tick(node: FakeNode) -> None:
    node.cdi.touch()  # no directory: an error of its reader, as EIO is
    node.supervised = False
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "its CDI spec cannot be changed" in node.daemon().get("message", ""))
    assert node.daemon()["reason"] == "Pending", "it may be open, and is not ready"
    node.supervised = True
    await node.until(lambda: node.daemon().get("reason") == "GateNotOpen")
    node.cdi.unlink()
    await node.until(lambda: len(node.kubelet.ids()) == 4)


async def test_no_gpu_is_drained_while_prepared_claims_cannot_be_read(
    node: FakeNode,
) -> None:
    await node.serving()
    await node.stop()
    unreadable = node.cdi / "gpushare.dev-claim-c.json"
    unreadable.mkdir()  # an error of its reader, as EIO is
    node.start()
    await node.ticks(1)
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    expected = "which claims are prepared cannot be read: "
    await node.until(lambda: node.daemon().get("message", "").startswith(expected))
    await node.read()
    await node.ticks(5)
    assert not node.daemon()["drained"]
    assert node.readings.part_holders() is None, "who holds an unknown claim would be refused"
    assert node.running.observer.usage.findings() is None
    unreadable.rmdir()
    await node.until(lambda: node.daemon()["drained"])
    await node.until(lambda: node.readings.part_holders() is not None)


async def test_a_broker_json_that_names_another_gpu_ends_no_agent(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    await node.serving()
    path = gpu_dir(node.root, "GPU-0").broker_state
    write_model(path, BrokerState(uuid="GPU-9", heartbeat=boot_clock(), listening=True))
    await node.until(lambda: "names another GPU and is ignored: 'GPU-9'" in caplog.text)
    await node.ticks(3)
    assert node.health.unhealthy() is None
    assert len(node.kubelet.ids()) == 4


async def test_an_agent_without_descriptors_gives_nothing_back(node: FakeNode) -> None:
    await node.serving()
    await node.until(lambda: node.daemon().get("ready"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.read()
    wanted, gates = read_wanted(node), node.gates()
    with no_descriptors():
        await asyncio.sleep(1.0)
        assert node.health.unhealthy() is None
        assert "GPU-0::0" in node.kubelet.ids(), "whom the kubelet restarts would be refused"
    before = node.running.tick.ended_at
    await node.until(lambda: node.running.tick.ended_at > before + 1.0)
    await node.until(lambda: node.daemon().get("ready") and len(node.kubelet.ids()) == 4)
    assert (read_wanted(node), node.gates()) == (wanted, gates)
    assert node.nvml.modes["GPU-0"] is ComputeMode.EXCLUSIVE_PROCESS


async def test_slots_without_a_plugin_socket_are_a_note_while_that_lasts(node: FakeNode) -> None:
    await node.serving()
    node.kubelet.plugin_problem = "No space left on device"
    expected = "gpushare.dev/a cannot be offered to the kubelet: No space left on device"
    await node.until(lambda: node.daemon().get("message") == expected)
    node.kubelet.plugin_problem = ""
    await node.until(lambda: node.daemon().get("message") != expected)


async def test_before_the_kubelet_was_read_nothing_is_offered(node: FakeNode) -> None:
    await node.stop()
    node.kubelet.down = True
    node.kubelet.started.clear()
    node.start()
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: node.gates())
    assert not node.kubelet.started
    node.kubelet.down = False
    await node.until(lambda: len(node.kubelet.ids()) == 4)


async def test_an_idle_node_writes_nothing(node: FakeNode) -> None:
    await node.serving()
    await node.until(lambda: node.daemon().get("ready"))
    await node.until(lambda: "WithinGrants" in [item["type"] for item in node.status()["conditions"]])
    await node.ticks(5)
    written = node.kube.status_writes
    await node.ticks(12)
    assert node.kube.status_writes == written


async def test_two_slots_for_one_container_are_refused_with_the_reason(node: FakeNode) -> None:
    await node.serving()
    with pytest.raises(LookupError, match="write a limit of 1"):
        node.kubelet.edits(["GPU-0::1", "GPU-0::2"])


async def test_the_loops_that_are_timed_are_those_that_the_metric_names(node: FakeNode) -> None:
    registry = CollectorRegistry()
    NodeMeters(registry)
    (metric,) = (item for item in registry.collect() if item.name == "gpushare_loop_duration_seconds")
    named = re.sub(r" \(\w+\)", "", metric.documentation.partition(": ")[2].rstrip(".")).split(", ")
    assert node.agent is not None
    loops = node.agent.loops()
    assert sorted(loop.name for loop in loops if loop.timed) == sorted(named)
    assert len({loop.name for loop in loops}) == len(loops)


async def test_the_heartbeat_begins_with_a_full_report_and_ends_with_ticks(node: FakeNode) -> None:
    await node.serving()
    await node.until(lambda: node.kube.has(LEASES, "n"))
    assert node.health.not_working() is None
    lease = node.kube.live(LEASES, "n")
    assert lease["spec"]["holderIdentity"] == "agent"
    node.running.tick.ended_at -= 11
    assert re.fullmatch(r"the last tick was 1\d s ago", node.health.not_working() or "")
    assert node.health.unhealthy() is None, "a late tick is no reason to restart it"
