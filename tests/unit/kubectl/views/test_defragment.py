"""`kubectl gpushare defragment`: which pods to start again so that GPUs become free."""

from typing import Any

from gpushare.api.gpunode import GpuNode
from gpushare.kubectl.views.defragment import defragment
from tests.unit.kubectl.cluster_objects import LIMITS, SILENT, gpu_node, pod, share, shown

REPLICA = {"ownerReferences": [{"kind": "ReplicaSet", "name": "serve", "controller": True}]}


def filled(*holding: list[str], share: str = "inference", **status: Any) -> GpuNode:
    """A node whose GPUs GPU-0, GPU-1 … belong to the share, held by these pods, a slot each."""
    uuids = [f"GPU-{number}" for number in range(len(holding))]
    node = gpu_node(
        *uuids,
        daemons=[
            {"uuid": uuid, "share": share, "ready": True, "reason": "Ready", "currentLimits": LIMITS} for uuid in uuids
        ],
        holders=[
            {"uuid": uuid, "share": share, "slots": list(range(len(pods))), "pods": pods}
            for uuid, pods in zip(uuids, holding, strict=True)
            if pods
        ],
        **status,
    )
    spec = {"assignments": [{"uuid": uuid, "share": share} for uuid in uuids]}
    return GpuNode.model_validate(node.wire() | {"spec": spec})


def replica(name: str, **parts: Any) -> dict[str, Any]:
    return pod(name, metadata=REPLICA, **parts)


def test_a_plan_names_pods_their_targets_and_settings() -> None:
    node = filled(["ml/alone"], ["ml/one", "ml/two"], [])
    pods = [replica(name) for name in ("alone", "one", "two")]
    report = defragment([share()], [node], [], pods)
    assert report.names == ["pod/alone"]
    (plan,) = report.data["shares"]
    assert plan["freed"] == [{"node": "n1", "uuid": "GPU-0"}]
    assert plan["moves"] == [
        {"pod": "ml/alone", "slots": 1, "from": {"node": "n1", "uuid": "GPU-0"}, "to": {"node": "n1", "uuid": "GPU-1"}}
    ]
    text = shown(report)
    assert "2 GPUs with clients, 1 of them could be free: delete 1 pod, one at a time." in text
    assert "Set spec.clients.placement of inference to Pack first" in text
    packed = share(clients={**share().spec.clients.wire(), "placement": "Pack"})
    assert "Pack first" not in shown(defragment([packed], [node], [], pods))


def test_bare_pods_and_daemon_sets_pods_keep_their_gpus() -> None:
    node = filled(["ml/bare"], ["ml/each"], ["ml/job"], ["ml/one", "ml/two"])

    def made_by(kind: str) -> dict[str, Any]:
        return {"ownerReferences": [{"kind": kind, "name": "it", "controller": True}]}

    owned = [pod("each", metadata=made_by("DaemonSet")), pod("job", metadata=made_by("Job"))]
    pods = [pod("bare"), *owned, replica("one"), replica("two")]
    report = defragment([share()], [node], [], pods)
    why = {item["uuid"]: item["why"] for item in report.data["shares"][0]["kept"]}
    assert why["GPU-0"] == "pod ml/bare has no controller, so that nothing starts it again"
    assert why["GPU-1"] == "pod ml/each belongs to a DaemonSet, which has one on each node"
    assert why["GPU-2"] == "pod ml/job belongs to a Job, which would begin again"
    assert report.data["shares"][0]["moves"] == []


def test_no_pod_is_sent_to_a_cordoned_or_silent_node() -> None:
    pods = [replica(name) for name in ("alone", "one", "two")]
    cordoned = {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}
    node = filled(["ml/alone"], ["ml/one", "ml/two"])
    assert defragment([share()], [node], [cordoned], pods).names == []
    silent = filled(["ml/alone"], ["ml/one", "ml/two"], conditions=[SILENT])
    report = defragment([share()], [silent], [], pods)
    assert report.names == []
    assert "no GPU would become free" in shown(report)


def test_slots_are_counted_as_the_kubelet_writes_them_into_a_pods_status() -> None:
    def holding(name: str, *ids: str) -> dict[str, Any]:
        resources = [{"resourceID": slot, "health": "Healthy"} for slot in ids]
        allocated = [{"name": "gpushare.dev/inference", "resources": resources}]
        return replica(name, status={"containerStatuses": [{"name": "main", "allocatedResourcesStatus": allocated}]})

    node = filled(["ml/wide", "ml/wide"], ["ml/one", "ml/two", "ml/three"])
    pods = [holding("wide", "GPU-0::0", "GPU-0::1"), *(replica(name) for name in ("one", "two", "three"))]
    assert [move["slots"] for move in defragment([share()], [node], [], pods).data["shares"][0]["moves"]] == [2]
    ended = holding("ended", "GPU-0::0")
    ended["status"]["phase"] = "Succeeded"
    assert len(defragment([share()], [node], [], [*pods, ended]).names) == 1
    across = holding("wide", "GPU-0::0", "GPU-1::3")
    kept = defragment([share()], [node], [], [across, *pods[1:]]).data["shares"][0]["kept"]
    assert {item["why"] for item in kept if item["uuid"] == "GPU-0"} == {"who holds 1 slot of it is not known"}


def queued(uuid: str, used: int, *waiting: str) -> dict[str, Any]:
    clients = [f"ml/{name}/main" for name in waiting]
    return {
        "uuid": uuid, "share": "inference", "limit": 2, "used": used, "waiting": len(waiting), "queue": clients,
    }  # fmt: skip


def test_pods_that_wait_beside_free_places_are_told() -> None:
    desks = share(clients={"perGpu": 2, "memory": {"default": "8Gi"}, "queue": {"slots": 4}})
    holding = (["ml/a", "ml/b", "ml/c", "ml/d"], ["ml/e", "ml/f"])
    node = filled(*holding, places=[queued("GPU-0", 2, "c", "d"), queued("GPU-1", 1)])
    pods = [replica(name) for name in "abcdef"]
    report = defragment([desks], [node], [], pods)
    (plan,) = report.data["shares"]
    queue = {"node": "n1", "uuid": "GPU-0", "pods": ["ml/d"], "beside": [{"uuid": "GPU-1", "free": 1}]}
    assert plan["queues"] == [queue]
    assert (
        "Share inference: 2 pods wait for a place on GPU-0 of node n1, and GPU-1 beside it has 1 free place: "
        "start pod ml/d again, and it gets one at once."
    ) in shown(report)
    assert plan["moves"] == [], "both would compute on GPU-0, where all places are taken"
    roomy = filled(*holding, places=[queued("GPU-0", 0), queued("GPU-1", 1)])
    assert len(defragment([desks], [roomy], [], pods).names) == 2

    served = filled(*holding, places=[queued("GPU-0", 1, "c"), queued("GPU-1", 1)])
    assert defragment([desks], [served], [], pods).data["shares"][0]["queues"] == [], "it gets the one beside it"


def test_a_share_of_claims_is_not_looked_at_and_says_so() -> None:
    claims = share(delivery="ResourceClaim", sizes=[{"name": "small", "threads": 10, "memory": "2Gi"}])
    report = defragment([claims], [], [], [])
    assert "not looked at, because the scheduler places its claims" in shown(report)
    assert report.data == {"shares": []}
