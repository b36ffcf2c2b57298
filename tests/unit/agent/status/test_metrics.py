"""The agent's metrics agree with what was decided and read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import CollectorRegistry

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.observe.activity import ContainerActivity
from gpushare.agent.observe.borrowing import Shortage
from gpushare.agent.observe.charges import IDLE, Account
from gpushare.agent.observe.unused import RunningPart
from gpushare.agent.observe.usage import Reading, Usage
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.offers import GpuOffer
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.status.meters import NodeMeters
from gpushare.agent.status.metrics import FAMILIES, WITHOUT_DRIVER, NodeSnapshot, samples
from gpushare.agent.terminate.requests import TerminationReason
from gpushare.api.compute_mode import ComputeMode
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Borrower, Finding
from gpushare.grant.model import Grant
from gpushare.mps.wire import DaemonLimits, DaemonState
from gpushare.nvml.types import GpuInfo, GpuProcesses
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import UUID, pod, process, uid, usage

GIB = 1 << 30
LIMITS = DaemonLimits(threads=50, memory_mib=16384)
STATE = DaemonState(uuid=UUID, share="a", heartbeat=1.0, reason=DaemonReason.READY, in_force=LIMITS, restarts=2)
STATE = structs.replace(STATE, faults=3, faulted_clients=[7, 8], servers_lost=4, contexts=5)
INFO = GpuInfo(UUID, 0, 0, "NVIDIA H200", 143155, 132, "9.0", None, False)
VIEW = GpuView(
    INFO, ComputeMode.EXCLUSIVE_PROCESS, GpuProcesses((), ()), seen_at=98.0, utilization=40, free_mib=5 * 1024
)
FOUND = Finding(
    uuid=UUID,
    share="a",
    reason="MemoryAboveGrant",
    pod="pod-1",
    granted=8192,
    observed=9000,
    since="2026-01-01T00:00:00Z",
)
HERE = {"share": "a", "uuid": UUID}
APP = HERE | {"namespace": "team", "pod": "pod-1", "container": "app"}


def decision(reason: DaemonReason = DaemonReason.READY, held: frozenset[int] = frozenset({0, 5})) -> GpuDecision:
    offer = GpuOffer(UUID, per_gpu=8, held=held, accepting=reason is DaemonReason.READY)
    return GpuDecision(GpuPlan(UUID, "a", GpuStage.SERVE, LIMITS), Readiness(reason), held, False, offer)


def snapshot(*usages: Usage, **fields: Any) -> NodeSnapshot:
    taken = NodeSnapshot(
        now=100.0,
        simulated=False,
        views={UUID: VIEW},
        client_ceiling=48,
        decisions={UUID: decision()},
        states={UUID: STATE},
        observed={UUID: Reading(UUID, "a", 97.0, 143155, usages)},
        attached={UUID: {10: 40.0, 11: 70.0, 12: 1.0}},
        unused={},
        findings=[FOUND, FOUND.model_copy(update={"pod": "pod-2"})],
        nvml_error="",
        kubelet_error="",
        kubelet_read_at=95.0,
    )
    return replace(taken, **fields)


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(taken: NodeSnapshot) -> Series:
    listed = [
        ((item.family.name, frozenset(zip(item.family.labels, item.labels, strict=True))), float(item.value))
        for item in samples(taken)
    ]
    assert len(listed) == len(dict(listed)), "a series stands twice: Prometheus refuses the whole scrape"
    return dict(listed)


def value(exported: Series, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    return exported.get((f"gpushare_{name}", frozenset((labels or {}).items())))


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("gpu_info", {"uuid": UUID, "index": "0", "product": "NVIDIA H200", "simulated": "false"}, 1),
        ("gpu_memory_bytes", {"uuid": UUID}, 143155 << 20),
        ("gpu_reading_age_seconds", {"uuid": UUID}, 2),
        ("gpu_utilization_ratio", {"uuid": UUID}, 0.4),
        ("mps_clients_limit", {"uuid": UUID}, 48),
        ("slots", HERE, 8),
        ("slots_offered", HERE, 8),
        ("slots_held", HERE, 2),
        ("daemon_ready", HERE, 1),
        ("daemon_reason", HERE | {"reason": "Ready"}, 1),
        ("daemon_restarts", HERE, 2),
        ("gpu_faults", HERE, 3),
        ("faulted_clients", HERE, 2),
        ("servers_lost", HERE, 4),
        ("mps_contexts", HERE, 5),
        ("findings", HERE | {"reason": "MemoryAboveGrant"}, 2),
        ("daemon_threads_limit_ratio", HERE, 0.5),
        ("daemon_memory_limit_bytes", HERE, 16 * GIB),
        ("mps_clients", HERE, 2),
        ("bypassing_processes", HERE, 1),
        ("observation_age_seconds", HERE, 3),
        ("container_memory_used_bytes", APP, 3 * GIB),
        ("container_memory_granted_bytes", APP, 8 * GIB),
        ("container_memory_limit_bytes", APP, 8 * GIB),
        ("container_memory_borrowed_bytes", APP, None),
        ("gpu_memory_free_bytes", {"uuid": UUID}, 5 * GIB),
        ("gpu_memory_short_bytes", HERE, None),
        ("container_threads_granted_ratio", APP, 0.25),
        ("container_processes", APP, 3),
        ("container_processes_granted", APP, 2),
        ("container_attached_seconds", APP, 60),
        ("container_last_attached_seconds", APP, 30),
        ("nvml_up", {}, 1),
        ("kubelet_up", {}, 1),
        ("kubelet_reading_age_seconds", {}, 5),
    ],
)
def test_a_nodes_metrics_are_in_base_units(name: str, labels: dict[str, str], expected: float | None) -> None:
    through = usage(process(10, 1024), process(11, 1024))
    past = usage(process(12, 1024, mps=False), grant=None)
    exported = series(snapshot(through, past))
    assert value(exported, name, labels) == expected


def test_charges_and_idle_are_counters_by_namespace() -> None:
    of = {"share": "a", "uuid": UUID, "product": "NVIDIA H200"}
    held = {Account("team", "a", UUID, "NVIDIA H200"): 12.5, Account(IDLE, "a", UUID, "NVIDIA H200"): 7.5}
    exported = series(snapshot(charged=held))
    assert value(exported, "charged_gpu_seconds", of | {"namespace": "team"}) == 12.5
    assert value(exported, "charged_gpu_seconds", of | {"namespace": "__idle__"}) == 7.5


def test_what_clients_with_a_class_did_is_counted() -> None:
    where = ("team", "pod-1", "app", "a", UUID)
    did = ContainerActivity(where, "BestEffort", 500, 12.5, 70.0, 0.004, {"team/pod-2": 3.0, "": 1.0})
    exported = series(snapshot(activity=[did]))
    classed = APP | {"class": "BestEffort"}
    assert value(exported, "container_active_seconds", classed) == 12.5
    assert value(exported, "container_launches", classed) == 500
    assert value(exported, "container_last_launch_seconds", classed) == 30
    assert value(exported, "container_longest_kernel_seconds", classed) == 0.004
    assert value(exported, "container_gave_way_seconds", APP | {"protected": "team/pod-2"}) == 3
    assert value(exported, "container_gave_way_seconds", APP | {"protected": ""}) == 1
    quiet = series(snapshot(activity=[replace(did, last_launch=None, longest=0.0)]))
    assert value(quiet, "container_last_launch_seconds", classed) is None
    assert value(quiet, "container_longest_kernel_seconds", classed) is None


def test_a_borrowers_limit_and_loan_are_shown_and_what_the_gpu_lacks() -> None:
    grant = Grant("a", 25, 8192, 1, burst_mib=16384)
    listed = Borrower(
        uuid=UUID, share="a", namespace="team", pod="pod-1", pod_uid=uid(1), container="app", reserved_mib=8192,
        limit_mib=24576, observed_mib=9000, since="2026-01-01T00:00:00Z",
    )  # fmt: skip
    seen = usage(process(10, 12 * 1024), grant=grant)
    exported = series(snapshot(seen, borrowers=[listed], shortages={UUID: Shortage(1024, 3072)}))
    assert value(exported, "container_memory_granted_bytes", APP) == 8 * GIB
    assert value(exported, "container_memory_limit_bytes", APP) == 24 * GIB
    assert value(exported, "container_memory_borrowed_bytes", APP) == 4 * GIB
    assert value(exported, "gpu_memory_short_bytes", HERE) == 2 * GIB
    spare = series(snapshot(seen, shortages={UUID: Shortage(3072, 1024)}))
    assert value(spare, "gpu_memory_short_bytes", HERE) == 0
    assert value(spare, "container_memory_borrowed_bytes", APP) is None, "nobody was found to borrow yet"


def test_a_draining_or_unready_gpu_offers_what_is_held_alone() -> None:
    exported = series(snapshot(decisions={UUID: decision(DaemonReason.SERVER_CONTEXT_LOST)}))
    assert value(exported, "slots_offered", HERE) == 2
    assert value(exported, "daemon_ready", HERE) == 0
    assert value(exported, "daemon_reason", HERE | {"reason": "ServerContextLost"}) == 1
    assert value(exported, "daemon_reason", HERE | {"reason": "Ready"}) is None


def test_what_ends_takes_its_series_with_it() -> None:
    before = series(snapshot(usage(process(10))))
    after = series(snapshot())
    assert {name for name, _ in before.keys() - after.keys()} == {
        "gpushare_container_memory_used_bytes",
        "gpushare_container_memory_granted_bytes",
        "gpushare_container_memory_limit_bytes",
        "gpushare_container_threads_granted_ratio",
        "gpushare_container_processes",
        "gpushare_container_processes_granted",
        "gpushare_container_attached_seconds",
        "gpushare_container_last_attached_seconds",
    }


def test_before_the_driver_is_loaded_nvml_and_kubelet_are_down() -> None:
    exported = series(WITHOUT_DRIVER)
    assert (value(exported, "nvml_up"), value(exported, "kubelet_up"), len(exported)) == (0, 0, 2)


def test_only_a_part_without_a_client_has_a_series_of_its_time() -> None:
    part = RunningPart("a", UUID, "uid", ("team", "pod-9", "app"), None)
    assert value(series(snapshot(unused={part: 90.0})), "container_unused_seconds", APP | {"pod": "pod-9"}) == 90
    assert value(series(snapshot()), "container_unused_seconds", APP) is None


def test_a_process_of_the_host_counts_and_is_in_no_container() -> None:
    host = usage(process(13, host=True), pod_uid="", namespace="", pod="", container="", grant=None, slot=False)
    exported = series(snapshot(host))
    assert value(exported, "mps_clients", HERE) == 1
    assert not [name for name, _ in exported if name.startswith("gpushare_container")]


pods = st.lists(
    st.builds(
        lambda pod, container, mps, pid: usage(process(pid, mps=mps), pod=pod, container=container),
        st.sampled_from(["", "p1", "p2"]),
        st.sampled_from(["", "c1", "c2"]),
        st.booleans(),
        st.integers(1, 9),
    ),
    max_size=12,
)


@given(pods)
def test_no_series_stands_twice_and_every_family_is_declared(usages: list[Usage]) -> None:
    exported = series(snapshot(*usages))
    assert {name for name, _ in exported} <= {family.name for family in FAMILIES}


async def test_a_live_agents_figures_are_read_without_asking_nvml(node: FakeNode) -> None:
    await node.serving()
    node.client(50, 1024, pod())
    here = {"share": "a", "uuid": "GPU-0"}
    await node.until(lambda: value(series(node.running.snapshot()), "mps_clients", here) == 1, 10)
    node.nvml.hanging = {"GPU-0", "GPU-1"}
    exported = series(node.running.snapshot())
    assert value(exported, "slots_offered", here) == len(node.kubelet.ids()) == 4
    assert value(exported, "daemon_ready", here) == 1
    node.nvml.release.set()


def test_every_cause_of_terminations_is_counted_from_the_start() -> None:
    registry = CollectorRegistry()
    meters = NodeMeters(registry)
    meters.count_attempt(TerminationReason.DEPARTURE, 2, True)
    counted = {
        labels["cause"]: value
        for family in registry.collect()
        for name, labels, value, *_ in family.samples
        if name == "gpushare_clients_ended_total"
    }
    assert counted == {"departure": 2.0, "maxWait": 0.0, "violation": 0.0, "idle": 0.0, "shortage": 0.0}
    assert registry.get_sample_value("gpushare_client_end_failures_total", {"cause": "departure"}) == 1
