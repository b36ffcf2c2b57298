"""Why a GPU is not taken: the first reason of the chain, told by name."""

from typing import Any

import pytest

from gpushare.api.compute_mode import ComputeMode

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a node that is not Ready keeps its GPUs": ("NodeNotReady", "node n1 is not Ready", {"ready": False}),
    "NVIDIA's device plugin is named with its resource and the way out": (
        "HeldByNvidiaPlugin",
        "offers nvidia.com/gpu: take it from NVIDIA's device plugin",
        {"allocatable": frozenset({"nvidia.com/gpu", "cpu"})},
    ),
    "a MIG resource is NVIDIA's too": (
        "HeldByNvidiaPlugin",
        "nvidia.com/mig-1g.18gb",
        {"allocatable": frozenset({"nvidia.com/mig-1g.18gb"})},
    ),
    "a pod that holds a whole GPU is counted": (
        "HeldByPods",
        "node n1: 1 pod holds nvidia.com/gpu: the GPUs are free once it has ended (GpuNode.status.foreignHolders)",
        {"status": {"foreignHolders": [{"namespace": "ml", "pod": "train", "resource": "nvidia.com/gpu"}]}},
    ),
    "a driver upgrade in progress is told with its state": (
        "DriverUpgrading",
        "drain-required",
        {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}},
    ),
    "a driver without room for the clients is told with the sum": (
        "ClientCeiling",
        "perGpu 8 × processes 1 = 8 MPS contexts, but the driver of node n1 takes 7",
        {"status": {"clientCeiling": 7}},
    ),
}

GPU_CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MIG is refused with the command that ends it": ("MigEnabled", "nvidia-smi -mig 0", {"mig_enabled": True}),
    "before Volta there are no limits": ("ComputeCapabilityTooLow", "6.1", {"compute_capability": "6.1"}),
    "a compute mode set by somebody else is respected": (
        "ForeignComputeMode",
        "ExclusiveProcess",
        {"compute_mode": ComputeMode.EXCLUSIVE_PROCESS},
    ),
    "a GPU that takes no process at all takes no MPS server": (
        "ForeignComputeMode",
        "Prohibited",
        {"compute_mode": ComputeMode.PROHIBITED},
    ),
    "a process on the GPU is named by PID and command": (
        "InUse",
        "process 4711 (python3) and 1 more",
        {"foreign_processes": [{"pid": 4712}, {"pid": 4711, "command": "python3"}]},
    ),
    "a lost GPU is not taken": ("GpuLost", "kernel log", {"lost": True}),
    "more memory promised than there is names the sum and the bound": (
        "MemoryOvercommitted",
        "perGpu 8 × memory.default 16Gi + 512Mi = 131584Mi, but GPU GPU-n1-0 of node n1 has 131583Mi",
        {"memory_mib": 131583},
    ),
}

TAKEN = {
    "an upgrade that is done does not matter": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}},
    "a resource of NVIDIA's that is no GPU does not matter": {"allocatable": frozenset({"nvidia.com/hostdev"})},
}


@pytest.mark.parametrize(("reason", "words", "node"), CASES.values(), ids=CASES)
def test_node_refused(make: Any, reason: str, words: str, node: dict[str, Any]) -> None:
    decided = make.plan(make.share(), make.node(gpus=1, **node))
    (group,) = decided.reports["a"].counts.unavailable
    assert (group.reason, group.count) == (reason, 1)
    assert words in group.message
    assert decided.assignments["n1"] == ()


@pytest.mark.parametrize(("reason", "words", "gpu"), GPU_CASES.values(), ids=GPU_CASES)
def test_gpu_refused(make: Any, reason: str, words: str, gpu: dict[str, Any]) -> None:
    decided = make.plan(make.share(), make.node(gpus=[make.gpu(0, **gpu), make.gpu(1)]))
    (group,) = decided.reports["a"].counts.unavailable
    assert (group.reason, group.count) == (reason, 1)
    assert words in group.message
    assert decided.assignments["n1"] == (make.assigned("a", 1),)


@pytest.mark.parametrize("node", TAKEN.values(), ids=TAKEN)
def test_taken_all_the_same(make: Any, node: dict[str, Any]) -> None:
    assert make.plan(make.share(), make.node(gpus=1, **node)).assignments["n1"] == (make.assigned("a"),)


@pytest.mark.parametrize(
    ("mode", "taken"),
    [(ComputeMode.DEFAULT, True), (ComputeMode.EXCLUSIVE_PROCESS, True), (ComputeMode.PROHIBITED, False)],
)
def test_a_gpu_in_any_mode_that_mps_allows_is_taken_where_modes_stay(make: Any, mode: ComputeMode, taken: bool) -> None:
    node = make.node(gpus=[make.gpu(0, compute_mode=mode)], status={"computeModePolicy": "Leave"})
    assert bool(make.plan(make.share(), node).assignments["n1"]) is taken


def test_exactly_enough_memory_is_enough(make: Any) -> None:
    decided = make.plan(make.share(), make.node(gpus=[make.gpu(0, memory_mib=8 * 16384 + 512)]))
    assert decided.assignments["n1"] == (make.assigned("a"),)


def test_overcommit_is_allowed_when_asked_for(make: Any) -> None:
    share = make.share(clients={"memory": {"default": "100Gi", "overcommit": True}})
    assert make.plan(share, make.node(gpus=1)).assignments["n1"] == (make.assigned("a"),)


def test_nvidia_s_dra_driver_holds_the_nodes_it_has_slices_of(make: Any) -> None:
    decided = make.plan(make.share(), make.node("n1"), make.node("n2"), dra=frozenset({"n1"}))
    assert decided.assignments["n1"] == ()
    assert len(decided.assignments["n2"]) == 2
    assert decided.reports["a"].counts.unavailable[0].reason == "HeldByNvidiaDra"


def test_the_first_reason_of_the_chain_is_told(make: Any) -> None:
    gpu = make.gpu(0, mig_enabled=True, lost=True)
    decided = make.plan(make.share(), make.node(gpus=[gpu], allocatable=frozenset({"nvidia.com/gpu"})))
    assert [group.reason for group in decided.reports["a"].counts.unavailable] == ["HeldByNvidiaPlugin"]


def test_a_gpu_of_another_product_does_not_match(make: Any) -> None:
    share = make.share(gpus={"products": ["NVIDIA H200"]})
    decided = make.plan(share, make.node(gpus=[make.gpu(0, product="NVIDIA L4"), make.gpu(1)]))
    assert decided.assignments["n1"] == (make.assigned("a", 1),)
    assert decided.reports["a"].counts.gpus.matching == 1
    assert decided.reports["a"].counts.unavailable == []


def test_a_free_gpu_of_a_silent_agent_is_not_taken(make: Any) -> None:
    decided = make.plan(make.share(), make.without_heartbeat(make.node(gpus=1)))
    (group,) = decided.reports["a"].counts.unavailable
    assert (group.reason, group.message) == ("AgentSilent", "node n1: no heartbeat since 9:00")
    assert decided.assignments["n1"] == ()


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ({"max": "17Gi"}, True),
        ({"max": "20Gi"}, False),
        ({"max": "20Gi", "overcommitPercent": 120}, True),
        ({"max": "34Gi", "overcommitPercent": 200}, True),
        ({"max": "36Gi", "overcommitPercent": 200}, False),
    ],
)
def test_the_limits_of_a_full_gpus_clients_stay_within_the_shares_percent(
    make: Any, limits: dict[str, Any], taken: bool
) -> None:
    share = make.share(clients={"memory": {"default": "16Gi", "limits": limits}})
    decided = make.plan(share, make.node(gpus=1))
    assert bool(decided.assignments["n1"]) is taken
    if not taken:
        (refused,) = decided.reports["a"].counts.unavailable
        assert refused.reason == "MemoryOvercommitted"
        assert f"memory.limits.max {limits['max']}" in refused.message
