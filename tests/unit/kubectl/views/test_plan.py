"""`kubectl gpushare plan`: the GPUs of a share, before it exists."""

from pathlib import Path
from typing import Any

import pytest

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.output.report import Report
from gpushare.kubectl.views import plan as view
from gpushare.kubectl.views.plan import wanted_share
from gpushare.planner import NodeView, Snapshot
from tests.unit.kubectl.cluster_objects import LIMITS as DAEMON_LIMITS
from tests.unit.kubectl.cluster_objects import gpu_node, share, shown


def fleet(*shares: GpuShare, node: GpuNode | None = None, **view: Any) -> Snapshot:
    values = {"labels": {"pool": "gpu"}, "ready": True, "allocatable": frozenset(), **view}
    return Snapshot(shares, (NodeView("n1", gpu_node=node or gpu_node("GPU-0", "GPU-1"), **values),))


def plan(live: Snapshot, wanted: GpuShare) -> Report:
    return view.plan(live, wanted.wire())


def test_plan_of_a_new_share_names_its_gpus_and_memory() -> None:
    report = plan(fleet(), share(gpus={"perNode": 1}))
    assert [(gpu["uuid"], gpu["what"]) for gpu in report.data["gpus"]] == [("GPU-0", "taken")]
    assert (report.data["slots"], report.data["memoryPerGpuMiB"], report.code) == (8, 8 * 8192, 0)
    assert "46% of 143155Mi" in shown(report)
    assert [refusal["reason"] for refusal in report.data["refused"]] == ["PerNodeReached"]


HELD = {"uuid": "GPU-0", "share": "old", "ready": True, "reason": "Ready", "desiredLimits": DAEMON_LIMITS}


def test_plan_of_a_share_by_claims_says_what_can_be_claimed_of_each_gpu() -> None:
    sizes = [{"name": "small", "threads": 10, "memory": "8Gi"}]
    report = plan(fleet(), share(delivery="ResourceClaim", sizes=sizes, gpus={"perNode": 1}))
    text = shown(report)
    for part in ("8 at most, 8 on each GPU", "claims share 100% of each GPU", "small: 10%, 8Gi"):
        assert part in text


def test_plan_takes_what_is_free_and_names_who_has_the_rest() -> None:
    live = fleet(share("old", gpus={"perNode": 1}), node=gpu_node("GPU-0", "GPU-1", daemons=[HELD]))
    report = plan(live, share("new", "2026-02-01T00:00:00Z"))
    assert [(gpu["uuid"], gpu["what"]) for gpu in report.data["gpus"]] == [("GPU-1", "taken")]
    ((reason, message),) = [(refusal["reason"], refusal["message"]) for refusal in report.data["refused"]]
    assert reason == "HeldByShare"
    assert '"old"' in message


def test_plan_of_a_share_without_gpus_names_reasons_and_fails() -> None:
    greedy = {"perGpu": 8, "memory": {"default": "80Gi"}}
    report = plan(fleet(), share(clients=greedy))
    assert [refusal["reason"] for refusal in report.data["refused"]] == ["MemoryOvercommitted"] * 2
    assert (report.data["gpus"], report.code) == ([], 1)


def test_plan_of_a_changed_share_shows_what_it_keeps_and_gives_back() -> None:
    daemons = [
        {"uuid": uuid, "share": "inference", "ready": True, "desiredLimits": DAEMON_LIMITS}
        for uuid in ("GPU-0", "GPU-1")
    ]
    live = share()
    report = plan(fleet(live, node=gpu_node("GPU-0", "GPU-1", daemons=daemons)), share(gpus={"perNode": 1}))
    assert {gpu["uuid"]: gpu["what"] for gpu in report.data["gpus"]} == {
        "GPU-0": "kept",
        "GPU-1": "given back once idle",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Pod", "0 GpuShares in 1 documents"),
        ("kind: GpuShare\n---\nkind: GpuShare", "2 GpuShares"),
        ("kind: GpuShare\napiVersion: v1\nmetadata: {name: a}", "apiVersion 'v1'"),
        ("a: [", "not YAML"),
        ("", "0 GpuShares in 0 documents"),
    ],
)
def test_a_file_that_holds_no_share_is_refused_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(WrongInputError, match=problem.replace("(", "\\(")):
        wanted_share(text)


def test_the_example_of_the_readme_can_be_planned() -> None:
    assert wanted_share(Path("examples/inference.yaml").read_text())["metadata"]["name"] == "inference"


LIMITS = {"max": "32Gi", "overcommitPercent": 200, "whenShort": "Terminate"}


def test_plan_says_what_is_reserved_and_how_far_limits_go() -> None:
    report = plan(fleet(), share(clients={"perGpu": 8, "memory": {"default": "16Gi", "limits": LIMITS}}))
    text = shown(report)
    for part in ("92% of 143155Mi, limits 183%", "32Gi at most", "at most 200%", "Terminate after 30s"):
        assert part in text
    assert report.data["limitsPerGpuMiB"] == 8 * 32768


def test_plan_refuses_a_gpu_whose_limits_would_be_above_the_shares_percent() -> None:
    report = plan(fleet(), share(clients={"perGpu": 8, "memory": {"default": "16Gi", "limits": {"max": "32Gi"}}}))
    assert [refusal["reason"] for refusal in report.data["refused"]] == ["MemoryOvercommitted"] * 2
    assert "raise memory.limits.overcommitPercent, which is 100" in report.data["refused"][0]["message"]


def test_plan_of_a_share_by_claims_says_what_can_be_borrowed_of_each_gpu() -> None:
    sizes = [{"name": "burst", "threads": 10, "memory": "8Gi", "memoryLimit": "24Gi"}]
    clients = {"perGpu": 8, "memory": {"default": "16Gi", "limits": LIMITS}}
    text = shown(plan(fleet(), share(delivery="ResourceClaim", sizes=sizes, clients=clients)))
    for part in ("and 142643Mi to borrow", "burst: 10%, 8Gi, 24Gi at most"):
        assert part in text
