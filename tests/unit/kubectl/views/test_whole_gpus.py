"""Whole GPUs in `kubectl gpushare status`, `describe`, `plan`, `why` and `check`."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.views import plan as plan_view
from gpushare.kubectl.views.check import check
from gpushare.kubectl.views.defragment import defragment
from gpushare.kubectl.views.describe import describe_node, describe_share
from gpushare.kubectl.views.pods.pod import PodFacts
from gpushare.kubectl.views.pods.why import why
from gpushare.kubectl.views.status import status
from gpushare.planner import NodeView, Snapshot
from tests.unit.kubectl.cluster_objects import gpu_node, pod, shown
from tests.unit.kubectl.views.test_check import SOUND, node, problems

NVIDIA = "nvidia.com/gpu"
SINCE = "2026-01-01T00:00:00Z"
READY = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": SINCE}
AT = datetime(2026, 1, 2, tzinfo=UTC)


def share(total: int = 2, used: int = 1) -> GpuShare:
    counts = {"slots": {"total": total, "used": used}, "gpus": {"ready": total}, "threads": "whole", "memory": "whole"}
    return GpuShare.model_validate(
        {
            "metadata": {"name": "training", "creationTimestamp": SINCE},
            "spec": {"wholeGpus": {"resourceName": NVIDIA}},
            "status": {**counts, "summary": f"{total}/{total}", "conditions": [READY]},
        }
    )


def holding(**daemon: Any) -> GpuNode:
    values = {"uuid": "GPU-0", "share": "training", "ready": True, "reason": "Ready", "resource": NVIDIA, **daemon}
    holder = {"uuid": "GPU-0", "share": "training", "slots": [0], "pods": ["ml/app"]}
    return gpu_node("GPU-0", daemons=[values], holders=[holder])


def asking(**parts: Any) -> dict[str, Any]:
    body = pod(asks="", **parts)
    body["spec"]["containers"][0]["resources"]["limits"] = {NVIDIA: "2"}
    return body


def test_status_and_describe_say_that_gpus_are_given_whole() -> None:
    assert "whole" in shown(status([share()], [holding()]))
    text = shown(describe_share(share(), [holding()], [], [], AT))
    assert "1 held of 2, as nvidia.com/gpu" in text
    assert "ml/app" in text
    assert "Threads:" not in text
    assert "whole, nvidia.com/gpu" in shown(describe_node(holding(), [], AT))


def test_plan_of_a_share_of_whole_gpus() -> None:
    view = NodeView("n1", {}, True, frozenset(), gpu_node("GPU-0", "GPU-1"))
    report = plan_view.plan(Snapshot((), (view,)), share().wire())
    assert (report.data["slots"], report.data["memoryPerGpuMiB"], report.code) == (2, None, 0)
    assert "2 to ask for, as nvidia.com/gpu" in shown(report)


def test_why_a_pod_waits_for_whole_gpus() -> None:
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    full = why(PodFacts(asking(status={"conditions": [condition]}), shares={"training": share(2, 2)}))
    assert full.sentence == "it waits for whole GPUs of share training: all 2 are held"
    assert "give the share more GPUs" in full.hint


def test_why_a_pod_runs_on_whole_gpus_and_why_its_gate_is_closed() -> None:
    states = [{"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T01:00:00Z"}}}]
    runs = asking(spec={"nodeName": "n1"}, status={"phase": "Running", "containerStatuses": states})
    runs["spec"]["containers"] = asking()["spec"]["containers"]
    answer = why(PodFacts(runs, shares={"training": share()}, nodes=[holding()]))
    assert "main has 2 whole GPUs, as nvidia.com/gpu" in answer.sentence
    waits = {"waiting": {"reason": "X", "message": "unresolvable CDI devices gpushare.dev/gpu=GPU-0"}}
    closed = asking(spec={"nodeName": "n1"}, status={"containerStatuses": [{"name": "main", "state": waits}]})
    closed["spec"]["containers"] = asking()["spec"]["containers"]
    lost = holding(ready=False, reason="GpuLost", message="NVML no longer reaches it")
    answer = why(PodFacts(closed, shares={"training": share()}, nodes=[lost]))
    assert "the gate of GPU GPU-0 is closed: it is not ready: GpuLost" in answer.sentence


def test_check_takes_gpus_of_ours_for_no_other_plugin_s() -> None:
    offering = node(allocatable={NVIDIA: "1"})
    assert problems(replace(SOUND, nodes=(offering,), gpu_nodes={"n1": holding()})) == []
    assert "NVIDIA's device plugin offers" in shown(check(replace(SOUND, nodes=(offering,)), None))


def test_defragment_does_not_look_at_whole_gpus() -> None:
    text = shown(defragment([share()], [holding()], [], []))
    assert "Share training: not looked at, because it gives whole GPUs." in text
