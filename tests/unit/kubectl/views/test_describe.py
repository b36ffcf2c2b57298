"""`kubectl gpushare describe`: everything about one share, node or pod, in one place."""

from dataclasses import replace
from datetime import UTC, datetime

from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import client_environment
from gpushare.grant.model import default_grant
from gpushare.kubectl.views.describe import describe_node, describe_pod, describe_share
from gpushare.kubectl.views.pods.pod import PodFacts
from tests.unit.kubectl.cluster_objects import GPU, LIMITS, event, gpu_node, pod, share, shown

AT = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
FINDING = {"uuid": "GPU-0", "share": "inference", "reason": "MemoryAboveGrant", "namespace": "ml", "pod": "app",
           "podUid": "uid-app", "granted": 1, "observed": 2, "message": "uses 2 MiB",
           "since": "2026-01-01T00:00:00Z"}  # fmt: skip
NODE = gpu_node(
    "GPU-0",
    gpus=[GPU | {"uuid": "GPU-0", "foreignProcesses": [{"pid": 7, "memoryMib": 9, "command": "python"}]}],
    daemons=[{"uuid": "GPU-0", "share": "inference", "ready": True, "reason": "Ready", "currentLimits": LIMITS}],
    holders=[{"uuid": "GPU-0", "share": "inference", "slots": [0, 1], "pods": ["ml/app", "ml/other"]}],
    foreignHolders=[{"namespace": "old", "pod": "whole", "resource": "nvidia.com/gpu"}],
    findings=[FINDING],
)
STUCK = pod(
    "stuck", status={"conditions": [{"type": "PodScheduled", "status": "False", "message": "1 Insufficient cpu"}]}
)


def test_a_share_has_its_gpus_holders_waiting_pods_findings_and_events() -> None:
    state = {"unavailable": [{"reason": "GpuLost", "count": 1, "message": "GPU-9 is lost"}]}
    live = GpuShare.model_validate(share().wire() | {"status": state})
    mine = pod(status={"phase": "Running"})
    report = describe_share(live, [NODE], [STUCK, mine, pod("no", asks="other")], [event("GpuAssigned", "1 GPU")], AT)
    assert report.data["pendingPods"] == ["ml/stuck"]
    text = shown(report)
    for part in ("1 GPU, GpuLost: GPU-9 is lost", "GPU-0", "ml/app, ml/other", "1 Insufficient cpu", "uses 2 MiB",
                 "GpuAssigned", "Age:          10m"):  # fmt: skip
        assert part in text
    assert "ml/no" not in text


def test_a_share_is_described_without_the_right_to_list_pods() -> None:
    assert describe_share(share(), [NODE], None, [], AT).data["pendingPods"] == []


def test_a_share_says_which_classes_its_clients_have() -> None:
    assert "Classes:" not in shown(describe_share(share(), [NODE], None, [], AT))
    classes = {"allowed": ["Normal", "Protected"], "protected": {"namespaces": ["web"]}}
    clients = {"perGpu": 8, "memory": {"default": "8Gi"}, "classes": classes}
    assert (
        "Normal by default, Normal, Protected; 2 Protected on a GPU of namespace web; BestEffort has 50% of the SMs"
        in shown(describe_share(share(clients=clients), [NODE], None, [], AT))
    )


def test_a_pods_grant_has_its_class() -> None:
    grant = replace(default_grant(share()), client_class=ClientClass.BEST_EFFORT, threads_beside_protected=30)
    environment = [{"name": key, "value": value} for key, value in client_environment(grant, None).items()]
    container = {"name": "main", "resources": {"limits": {"gpushare.dev/inference": "1"}}, "env": environment}
    mine = pod(spec={"nodeName": "n1", "containers": [container]}, status={"phase": "Running"})
    text = shown(describe_pod(PodFacts(mine, [], {"inference": share()}, [NODE]), AT))
    assert "of share inference, BestEffort (30% of the SMs beside protected clients)" in text


def test_a_node_has_its_limits_pods_and_what_bypasses_mps() -> None:
    text = shown(describe_node(NODE, [event("GpuFault", "Xid 31", "GpuNode/n1")], AT))
    for part in ("50%/8Gi", "ml/app, ml/other", "PID 7 (python) on GPU GPU-0, 9Mi", "old/whole asks for nvidia.com/gpu",
                 "MemoryAboveGrant", "Xid 31"):  # fmt: skip
        assert part in text


def test_a_node_says_what_its_daemons_speak() -> None:
    daemons = [
        {"uuid": f"GPU-{number}", "share": "a", "protocol": spoken} for number, spoken in enumerate(("V3", "V2", ""))
    ]
    assert "MPS protocol:  V2, V3" in shown(describe_node(gpu_node(daemons=daemons), [], AT))
    assert "MPS protocol" not in shown(describe_node(gpu_node(), [], AT))


def test_a_pod_has_its_grant_its_neighbours_and_its_findings() -> None:
    environment = [
        {"name": key, "value": value} for key, value in client_environment(default_grant(share()), None).items()
    ]
    container = {"name": "main", "resources": {"limits": {"gpushare.dev/inference": "1"}}, "env": environment}
    mine = pod(spec={"nodeName": "n1", "containers": [container]}, status={"phase": "Running"})
    report = describe_pod(PodFacts(mine, [event("AttachRefused", "no grant")], {"inference": share()}, [NODE]), AT)
    assert report.data["gpus"] == [{"node": "n1", "uuid": "GPU-0", "share": "inference", "neighbours": ["ml/other"]}]
    text = shown(report)
    for part in ("main: 25% of the SMs, 8Gi, 1 process of share inference", "ml/other", "uses 2 MiB", "AttachRefused"):
        assert part in text
