"""Pods that belong elsewhere, and those of which the figures do not say so."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpunode import GpuNode
from gpushare.kubectl.rules.recommend.history import FaultSeen, workload_of
from gpushare.kubectl.rules.recommend.pods import own_gpu, unused_parts
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.rules.recommend.made_up import container, fault, gpu, history, seen, share


def about(**parts: Any) -> list[str]:
    of = parts.pop("of", share())
    return [advice.about for advice in own_gpu(history(of, **parts))]


@pytest.mark.parametrize(
    ("case", "most", "named"),
    [
        ("no client of 16Gi fits beside 65 GiB and a tenth", 60_000, ["ml/serve"]),
        ("one does", 50_000, []),
    ],
)
def test_a_container_that_leaves_no_memory_for_a_neighbour_belongs_alone(
    case: str, most: int, named: list[str]
) -> None:
    containers = [container(most, 70_000, "serve-5d4f7b9c8d-x2k4p"), container(15_000)]
    assert about(of=share(overcommit=True, max="70000Mi"), containers=containers) == named, case


def test_on_a_share_with_one_client_for_each_gpu_it_is_alone_already() -> None:
    assert about(of=share(1, "70Gi"), containers=[container(70_000, 71_680)]) == []


SELDOM = container(900, pod="crash-b4x7z", samples=40)
ALWAYS = container(900, pod="server-0")
OTHER = container(900, pod="job-c4x7z", samples=40)
BOTH = ("ml/crash", "ml/server")


@pytest.mark.parametrize(
    ("case", "faults", "named"),
    [
        ("at every fault, and seldom there", [fault(1, *BOTH), fault(2, *BOTH)], ["ml/crash"]),
        ("on other GPUs, too", [fault(1, *BOTH), fault(2, "ml/crash", uuid="GPU-1")], ["ml/crash"]),
        ("not at every fault", [fault(1, *BOTH), fault(2, *BOTH), fault(3, "ml/server")], []),
        ("always there, so at every fault anyway", [fault(1, "ml/server", "ml/job"), fault(2, "ml/server")], []),
        ("two that come together cannot be told apart",
         [fault(1, "ml/crash", "ml/job"), fault(2, "ml/crash", "ml/job")], []),
        ("without a neighbour nobody was harmed", [fault(1, "ml/crash"), fault(2, "ml/crash")], []),
    ],
)  # fmt: skip
def test_who_was_at_every_fault_by_no_chance_belongs_alone(
    case: str, faults: list[FaultSeen], named: list[str]
) -> None:
    gpus = [gpu(), gpu(uuid="GPU-1")]
    assert about(faults=faults, containers=[SELDOM, ALWAYS, OTHER], gpus=gpus) == named, case


def test_one_fault_is_no_pattern_however_seldom_somebody_is_there() -> None:
    once = container(900, pod="crash-b4x7z", samples=1)
    assert about(faults=[fault(1, *BOTH)], containers=[once, ALWAYS]) == []
    assert about(faults=[fault(1, *BOTH), fault(2, *BOTH)], containers=[once, ALWAYS]) == ["ml/crash"]


def test_the_suspicion_has_its_figures_and_is_never_quite_sure() -> None:
    (advice,) = own_gpu(history(faults=[fault(1, *BOTH), fault(2, *BOTH)], containers=[SELDOM, ALWAYS]))
    assert advice.sure is Sureness.MEDIUM
    assert advice.patch is None
    assert "at all 2 faults of the share in 7d, 2016 samples, 2 of them with neighbours" in advice.why
    assert "though it is there 2.0% of the time: chance alone does that with a probability of 0.0004" in advice.why


def test_a_short_history_accuses_nobody() -> None:
    faults = [fault(1, *BOTH), fault(2, *BOTH)]
    assert about(faults=faults, containers=[SELDOM, ALWAYS], clients=seen(0.5)) == []


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("serve-5d4f7b9c8d-x2k4p", "serve"),
        ("agent-x2k4p", "agent"),
        ("database-0", "database"),
        ("train-once", "train-once"),
        ("a-b-c-12", "a-b-c"),
        ("team-alpha", "team-alpha"),
        ("x2k4p", "x2k4p"),
    ],
)
def test_the_workload_is_known_by_the_names_that_controllers_give(pod: str, workload: str) -> None:
    assert workload_of("ml", pod) == f"ml/{workload}"


@given(st.text("abcdfghjklmnpqrstvwxz-0123456789", min_size=1, max_size=253))
def test_every_pod_has_a_workload(pod: str) -> None:
    workload = workload_of("ml", pod).removeprefix("ml/")
    assert workload
    assert pod.startswith(workload)


def node(silence: str = "", **part: Any) -> GpuNode:
    unused = {"uuid": "GPU-0", "share": "team", "namespace": "ml", "pod": "notebook-0", "container": "main"} | part
    conditions = [] if not silence else [
        {"type": "AgentReporting", "status": "Unknown", "reason": "AgentSilent", "message": silence,
         "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]  # fmt: skip
    return GpuNode.model_validate(
        {"metadata": {"name": "n1"}, "status": {"unused": [unused], "conditions": conditions}}
    )


NOW = datetime(2026, 1, 10, tzinfo=UTC)
LONG, SHORT = "2026-01-05T00:00:00Z", "2026-01-09T01:00:00Z"


@pytest.mark.parametrize(
    ("case", "nodes", "named"),
    [
        ("for days", [node(unusedSince=LONG)], ["ml/notebook-0"]),
        ("for hours", [node(unusedSince=SHORT)], []),
        ("of another share", [node(unusedSince=LONG, share="other")], []),
        ("by an agent that is silent", [node("no heartbeat", unusedSince=LONG)], []),
    ],
)
def test_who_holds_a_slot_for_days_without_a_client_is_named(case: str, nodes: list[GpuNode], named: list[str]) -> None:
    advice = unused_parts(nodes, ["team"], NOW)
    assert [item.about for item in advice] == named, case
    assert all("no client on its GPU for 5d" in item.why for item in advice)
