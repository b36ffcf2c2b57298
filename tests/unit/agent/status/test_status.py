"""A GpuNode's status, from what the agent knows."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.agent.gpus.view import DriverVersions, GpuView
from gpushare.agent.observe.borrowing import Shortage
from gpushare.agent.observe.granted import Reserved
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.offers import GpuOffer
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.status.status import NodeFacts, build, foreign_holders, offered_by_nvidia, own_part, urgent
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Finding, GpuNodeStatus, Limits
from gpushare.api.meta import Condition
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import GpuInfo, GpuProcess, GpuProcesses
from tests.unit.agent.decided_gpus import LIMITS, decided

STATE = DaemonState(
    uuid="GPU-0", share="a", heartbeat=1.0, reason=DaemonReason.READY, server_pid=7, in_force=LIMITS, restarts=2
)


def view(index: int, *pids: int, commands: dict[int, str] | None = None, lost: bool = False) -> GpuView:
    info = GpuInfo(f"GPU-{index}", index, index, "NVIDIA H200", 143155, 132, "9.0", None, False)
    compute = tuple(GpuProcess(pid, 66) for pid in pids)
    return GpuView(info, ComputeMode.DEFAULT, GpuProcesses((GpuProcess(100, 300),), compute), 1.0, lost, commands or {})


TAKEN = decided(state=STATE)
FACTS = NodeFacts(
    generation=3,
    agent_version="1",
    simulated=False,
    driver=DriverVersions("590.1", "13.1"),
    views={"GPU-1": view(1), "GPU-0": view(0, 7)},
    original_modes={"GPU-0": ComputeMode.DEFAULT},
    gpus=[TAKEN],
    held={("a", "GPU-0"): frozenset({4, 1}), ("a", "GPU-1"): frozenset()},
    now="2026-01-01T00:00:00Z",
)
EMPTY = GpuNodeStatus()


def test_gpus_come_in_nvmls_order_with_the_driver_and_its_ceiling() -> None:
    status = build(FACTS, EMPTY)
    assert [gpu.uuid for gpu in status.gpus] == ["GPU-0", "GPU-1"]
    assert (status.driver_version, status.client_ceiling, status.observed_generation) == ("590.1", 60, 3)
    assert status.gpus[0].original_compute_mode is ComputeMode.DEFAULT


def test_a_daemon_is_shown_with_the_limits_in_force() -> None:
    daemon = build(FACTS, EMPTY).daemons[0]
    assert (daemon.ready, daemon.current_limits, daemon.server_pid, daemon.restarts) == (
        True,
        Limits(threads=50, memory_mib=16384),
        7,
        2,
    )


def pod(name: str, resource: str, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"resources": {"limits": {resource: "1"}}}]
    return {
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"containers": containers, **spec},
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z"},
    }


@pytest.mark.parametrize(
    ("sentence", "shown", "foreign"),
    [
        ("our server is not foreign", view(0, 7), []),
        ("a program beside MPS is, by PID and name", view(0, 7, 9, commands={9: "python3"}), [(9, "python3")]),
        ("nor is an MPS server that state.json is about to name",
         view(0, 8, commands={8: "nvidia-cuda-mps-server"}), []),
        ("a client of MPS is not foreign", view(0, 100), []),
    ],
)  # fmt: skip
def test_foreign_processes(sentence: str, shown: GpuView, foreign: list[tuple[int, str]]) -> None:
    status = build(replace(FACTS, views={"GPU-0": shown}), EMPTY)
    assert [(process.pid, process.command) for process in status.gpus[0].foreign_processes] == foreign, sentence


def test_an_mps_server_on_a_gpu_that_no_share_has_is_foreign() -> None:
    shown = view(1, 8, commands={8: "nvidia-cuda-mps-server"})
    assert build(replace(FACTS, views={"GPU-1": shown}), EMPTY).gpus[0].foreign_processes[0].pid == 8


def test_what_the_agent_waits_for_is_shown_instead_of_the_readiness() -> None:
    stopping = replace(
        TAKEN,
        plan=GpuPlan("GPU-0", "a", GpuStage.STOP, LIMITS),
        readiness=Readiness(DaemonReason.STOPPING, "asked to end"),
        note="waiting for the MPS pod to end the daemon",
    )
    daemon = build(replace(FACTS, gpus=[stopping]), EMPTY).daemons[0]
    assert (daemon.reason, daemon.message) == ("Stopping", "waiting for the MPS pod to end the daemon")


def test_a_gpu_that_was_never_taken_is_drained_even_of_an_unknown_share() -> None:
    plan, readiness = GpuPlan("GPU-1", "b", GpuStage.NOTHING_TO_DRAIN, None), Readiness(DaemonReason.PENDING)
    never = GpuDecision(plan, readiness, frozenset(), True, GpuOffer("GPU-1", 0, frozenset(), False))
    assert [(d.share, d.drained) for d in build(replace(FACTS, gpus=[never]), EMPTY).daemons] == [("b", True)]


def test_slots_are_sorted_and_gpus_without_held_slots_are_left_out() -> None:
    assert [(h.uuid, h.slots) for h in build(FACTS, EMPTY).holders] == [("GPU-0", [1, 4])]


def test_holders_stay_until_the_kubelet_was_read() -> None:
    before = build(FACTS, EMPTY)
    assert build(replace(FACTS, held=None), before).holders == before.holders


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = build(FACTS, EMPTY)
    later = build(replace(FACTS, now="2026-01-02T00:00:00Z"), first)
    assert later == first
    broken = build(replace(FACTS, now="2026-01-02T00:00:00Z", nvml_error="Driver Not Loaded"), first)
    condition = next(item for item in broken.conditions if item.type == "NvmlReachable")
    assert (condition.status, condition.message) == ("False", "Driver Not Loaded")
    assert condition.last_transition_time == "2026-01-02T00:00:00Z"


def test_a_part_of_the_driver_that_the_image_lacks_is_a_condition() -> None:
    for error, status, reason in (
        ("", "True", "Reachable"),
        ("no nvidia-cuda-mps-server", "False", "DriverFilesMissing"),
    ):
        listed = build(replace(FACTS, driver_error=error), EMPTY).conditions
        condition = next(item for item in listed if item.type == "DriverFilesReachable")
        assert (condition.status, condition.reason, condition.message) == (status, reason, error)


@pytest.mark.parametrize(
    ("sentence", "changes", "condition"),
    [
        ("an agent that sets the modes itself has nothing to say", {"modes": ComputeModePolicy.MANAGE}, None),
        ("a shared GPU that processes can use past MPS is reported", {}, "False"),
        ("one that the administrator has closed to them is fine",
         {"views": {"GPU-0": replace(view(0, 7), mode=ComputeMode.EXCLUSIVE_PROCESS), "GPU-1": view(1)}}, "True"),
        ("the mode of a lost GPU is not known", {"views": {"GPU-0": view(0, lost=True)}}, "True"),
    ],
)  # fmt: skip
def test_gpus_open_to_bypass_are_reported_where_modes_are_left(
    sentence: str, changes: dict[str, Any], condition: str | None
) -> None:
    status = build(replace(FACTS, **({"modes": ComputeModePolicy.LEAVE} | changes)), EMPTY)
    exclusive = {item.type: item for item in status.conditions}.get("GpusExclusive")
    assert (exclusive and exclusive.status) == condition, sentence
    if exclusive and condition == "False":
        assert "`nvidia-smi -i GPU-0 -c EXCLUSIVE_PROCESS`" in exclusive.message
        assert "untested on hardware" in exclusive.message
        assert "GPU-1" not in exclusive.message, "no share has it"


@pytest.mark.parametrize(
    ("allocatable", "own", "by_claims", "offered"),
    [
        ((), (), False, []),
        (("gpushare.dev/a", "example.com/nic"), (), False, []),
        (("nvidia.com/gpu",), (), False, ["nvidia.com/gpu"]),
        (("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"), ("nvidia.com/gpu",), False, ["nvidia.com/mig-1g.10gb"]),
        (("nvidia.com/gpu",), ("nvidia.com/gpu",), False, []),
        ((), (), True, ["gpu.nvidia.com"]),
    ],
)
def test_what_of_nvidias_offers_gpus_of_the_node(
    allocatable: tuple[str, ...], own: tuple[str, ...], by_claims: bool, offered: list[str]
) -> None:
    assert offered_by_nvidia(allocatable, own, by_claims=by_claims) == offered


@pytest.mark.parametrize("modes", list(ComputeModePolicy))
@pytest.mark.parametrize(
    ("offered", "reason", "label"),
    [
        ("nvidia.com/gpu", "HeldByNvidiaPlugin", "nvidia.com/gpu.deploy.device-plugin=false"),
        ("gpu.nvidia.com", "HeldByNvidiaDra", "nvidia.com/gpu.deploy.dra-driver=false"),
    ],
)
def test_gpus_that_a_share_and_nvidias_parts_offer_have_a_reason(
    modes: ComputeModePolicy, offered: str, reason: str, label: str
) -> None:
    facts = replace(FACTS, modes=modes, offered_by_nvidia=[offered])
    told = {item.type: item for item in build(facts, EMPTY).conditions}["GpusExclusive"]
    assert (told.status, told.reason, label in told.message) == ("False", reason, True)
    unshared = {item.type: item for item in build(replace(facts, gpus=[]), EMPTY).conditions}
    assert "GpusExclusive" not in unshared or unshared["GpusExclusive"].status == "True", "no share has a GPU here"


def test_a_resourceslice_that_is_refused_is_a_condition_until_it_is_taken() -> None:
    said = "the API server refuses to apply resourceslices n-gpushare.dev: no"
    told = [item for item in build(replace(FACTS, slice_error=said), EMPTY).conditions if item.type == "WritesAccepted"]
    assert [(item.status, item.reason, item.message) for item in told] == [("False", "WriteRefused", said)]
    assert "WritesAccepted" not in {item.type for item in build(FACTS, EMPTY).conditions}


@pytest.mark.parametrize("kind", ["WritesAccepted", "GpusExclusive"])
def test_a_condition_that_is_mended_is_true_even_after_the_agents_silence(kind: str) -> None:
    """The operator has set it to Unknown, so a write without it would leave it there."""
    unknown = Condition(type=kind, status="Unknown", reason="AgentSilent", last_transition_time="2026-01-01T00:00:00Z")
    told = build(FACTS, EMPTY.model_copy(update={"conditions": [unknown]}))
    assert {item.type: item.status for item in told.conditions}[kind] == "True"
    again = build(FACTS, told)
    assert again == told, "and costs no further write"


def test_a_status_survives_the_api_unchanged() -> None:
    status = build(FACTS, EMPTY)
    assert GpuNodeStatus.model_validate(status.wire()) == status


@pytest.mark.parametrize(
    ("sentence", "facts", "expected"),
    [
        ("a change of readiness is urgent",
         replace(FACTS, gpus=[replace(TAKEN, readiness=Readiness(DaemonReason.SERVER_CONTEXT_LOST))]), True),
        ("so is drained", replace(FACTS, gpus=[replace(TAKEN, drained=True)]), True),
        ("and a lost GPU", replace(FACTS, views={**FACTS.views, "GPU-1": view(1, lost=True)}), True),
        ("and a pod that holds a whole GPU", replace(FACTS, pods=[pod("whole", "nvidia.com/gpu")]), True),
        ("slots coming and going are not", replace(FACTS, held={}), False),
        ("nor are messages", replace(FACTS, gpus=[replace(TAKEN, note="waits")]), False),
    ],
)  # fmt: skip
def test_which_changes_are_urgent(sentence: str, facts: NodeFacts, expected: bool) -> None:
    assert urgent(build(facts, EMPTY), build(FACTS, EMPTY)) is expected, sentence


def test_pods_with_whole_gpus_are_named_until_they_end() -> None:
    pods = [
        pod("whole", "nvidia.com/gpu"),
        pod("slice", "nvidia.com/mig-1g.18gb"),
        pod("shared", "nvidia.com/gpu.shared"),
        pod("ended", "nvidia.com/gpu", phase="Succeeded"),
        pod("ours", "gpushare.dev/a"),
        {
            **pod("charted", "nvidia.com/gpu"),
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "0"}}}]},
        },
        {**pod("names-the-node", "nvidia.com/gpu"), "status": {"phase": "Pending"}},
        {**pod("unbound", "nvidia.com/gpu"), "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}},
        {**pod("bound", "nvidia.com/gpu"), "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}},
        {"metadata": {"namespace": "ns", "name": "plain"}, "spec": {"containers": [{"name": "c"}]}},
    ]
    assert [holder.pod for holder in foreign_holders(pods)] == ["bound", "shared", "slice", "whole"]


def test_pods_with_a_gpu_by_nvidias_dra_driver_are_named_until_they_end() -> None:
    pods = [pod("claims", "cpu"), pod("ended", "cpu", phase="Succeeded"), pod("plain", "cpu")]
    claims = {("ns", "claims"), ("ns", "ended"), ("ns", "gone")}
    assert [(holder.pod, holder.resource) for holder in foreign_holders(pods, (), claims)] == [
        ("claims", "gpu.nvidia.com")
    ]
    told = build(replace(FACTS, pods=pods, nvidia_claims=claims), EMPTY)
    assert [holder.pod for holder in told.foreign_holders] == ["claims"]


FINDING = Finding(
    uuid="GPU-0", share="a", reason="MemoryAboveGrant", granted=1, observed=2, message="two of one", since="2026"
)


def within_grants(status: GpuNodeStatus) -> tuple[str, str, str] | None:
    matching = [item for item in status.conditions if item.type == "WithinGrants"]
    return (matching[0].status, matching[0].reason, matching[0].message) if matching else None


def test_findings_stay_until_a_restarted_agent_has_judged() -> None:
    before = build(replace(FACTS, findings=[FINDING]), EMPTY)
    after = build(replace(FACTS, findings=None, now="2027-01-01T00:00:00Z"), before)
    assert after == before


def test_an_agent_that_never_judged_says_nothing_of_grants() -> None:
    assert within_grants(build(FACTS, EMPTY)) is None


def test_the_oldest_finding_is_the_conditions_message() -> None:
    second = FINDING.model_copy(update={"message": "another"})
    status = build(replace(FACTS, findings=[FINDING, second]), EMPTY)
    assert within_grants(status) == ("False", "MemoryAboveGrant", "two of one; 1 more in status.findings")
    assert status.findings == [FINDING, second]


def test_without_findings_all_clients_are_within_their_grants() -> None:
    assert within_grants(build(replace(FACTS, findings=[]), EMPTY)) == ("True", "WithinGrants", "")


def test_the_operators_condition_is_no_part_of_the_agents_status() -> None:
    """A status that differed by it alone would be written again and again."""
    ours = build(FACTS, GpuNodeStatus())
    said = Condition(type="AgentReporting", status="True", reason="x", last_transition_time="2026-01-01T00:00:00Z")
    read = ours.model_copy(update={"conditions": [said, *ours.conditions]})
    assert own_part(read, ours) == ours
    assert build(FACTS, read) == ours


def test_another_agents_condition_is_no_difference_once_it_is_unknown() -> None:
    """Server-side apply cannot remove what the operator owns, so it would be tried again and again."""
    ours = build(FACTS, GpuNodeStatus())
    left = Condition(
        type="GpusExclusive", status="Unknown", reason="AgentSilent", last_transition_time="2026-01-01T00:00:00Z"
    )
    assert own_part(ours.model_copy(update={"conditions": [*ours.conditions, left]}), ours) == ours
    owned = left.model_copy(update={"reason": "ExclusiveProcess"})
    assert own_part(ours.model_copy(update={"conditions": [*ours.conditions, owned]}), ours) != ours, "it is removed"
    silenced = [item.model_copy(update={"reason": "AgentSilent"}) for item in ours.conditions]
    assert own_part(ours.model_copy(update={"conditions": silenced}), ours) != ours, "it is taken back"


def test_conditions_set_to_unknown_are_taken_back_with_a_new_time() -> None:
    ours = build(FACTS, GpuNodeStatus())
    unknown = [item.model_copy(update={"status": "Unknown"}) for item in ours.conditions]
    later = build(replace(FACTS, now="2026-06-01T00:00:00Z"), ours.model_copy(update={"conditions": unknown}))
    assert [item.status for item in later.conditions] == [item.status for item in ours.conditions]
    assert {item.last_transition_time for item in later.conditions} == {"2026-06-01T00:00:00Z"}


def test_memory_pressure_is_a_condition_only_where_clients_may_borrow() -> None:
    assert "MemoryPressure" not in {item.type for item in build(FACTS, EMPTY).conditions}
    pressure = {
        item.type: item
        for short in ({}, {"GPU-0": Shortage(1000, 6000)})
        for item in build(replace(FACTS, short=short), EMPTY).conditions
    }["MemoryPressure"]
    assert (pressure.status, pressure.reason) == ("True", "MemoryShort")
    assert "GPU-0 has 1000 MiB free, and its clients have 6000 MiB reserved" in pressure.message
    (good,) = [item for item in build(replace(FACTS, short={}), EMPTY).conditions if item.type == "MemoryPressure"]
    assert (good.status, good.reason, good.message) == ("False", "MemorySufficient", "")


def test_what_is_reserved_of_a_gpu_stands_with_its_holders() -> None:
    sums = {("a", "GPU-0"): Reserved(24576, 73728)}
    (holder,) = build(replace(FACTS, reserved=sums), EMPTY).holders
    assert (holder.reserved_mib, holder.limits_mib) == (24576, 73728)
    assert build(FACTS, EMPTY).holders[0].reserved_mib is None


@pytest.mark.parametrize(
    ("seen", "before", "told"),
    [
        pytest.param(None, True, True, id="without a container the API's word stays"),
        pytest.param(False, True, False, id="a runtime that mounts it no more is told"),
        pytest.param(True, False, True, id="one that mounts it is, too"),
    ],
)
def test_whether_containers_have_the_pre_stop_program(seen: bool | None, before: bool, told: bool) -> None:
    status = build(replace(FACTS, pre_stop_mounted=seen), GpuNodeStatus(pre_stop_mounted=before))
    assert status.pre_stop_mounted is told
