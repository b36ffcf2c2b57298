"""The operator's copy of the cluster: what a plan reads, and nothing that changes with every heartbeat."""

from typing import Any

import pytest

from gpushare.controller.cache.fleet_cache import FleetCache, UnreadableError
from gpushare.kube.client import DAEMON_SETS, GPU_SHARES, NODES
from gpushare.planner.model import EPOCH

CLIENTS = {"perGpu": 1, "memory": {"default": "1Gi"}}


class Counted(FleetCache):
    def __init__(self) -> None:
        self.woken = 0
        super().__init__(self._count)

    def _count(self) -> None:
        self.woken += 1


def node(version: int, *, heartbeat: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": str(version), "labels": labels or {}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}],
            "allocatable": {"cpu": "8", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.18gb": "1"},
        },
    }


def share(version: int, **metadata: Any) -> dict[str, Any]:
    metadata = {"name": "a", "uid": "u", "resourceVersion": str(version), **metadata}
    return {"metadata": metadata, "spec": {"clients": CLIENTS}}


@pytest.fixture
def cache() -> Counted:
    return Counted()


def test_a_heartbeat_wakes_nobody(cache: Counted) -> None:
    cache.nodes.put(node(1, heartbeat="1"))
    cache.nodes.put(node(2, heartbeat="2"))
    assert cache.woken == 1


def test_the_view_of_a_node_is_the_same_object_until_the_node_changes(cache: Counted) -> None:
    """A plan tells by the object which nodes it has to look at again."""
    cache.nodes.put(node(1, heartbeat="1"))
    cache.gpu_nodes.put({"metadata": {"name": "n1", "resourceVersion": "1"}})
    (first,) = cache.snapshot(EPOCH).nodes
    cache.nodes.put(node(2, heartbeat="2"))
    cache.gpu_nodes.put({"metadata": {"name": "n1", "resourceVersion": "2"}})
    (same,) = cache.snapshot(EPOCH).nodes
    assert same is first
    cache.gpu_nodes.put({"metadata": {"name": "n1", "resourceVersion": "3", "generation": 2}})
    (second,) = cache.snapshot(EPOCH).nodes
    assert second.gpu_node is cache.gpu_nodes.get("n1")
    cache.nodes.put(node(4, labels={"pool": "gpu"}))
    (third,) = cache.snapshot(EPOCH).nodes
    assert third.labels == {"pool": "gpu"}
    cache.nodes.remove(node(5))
    assert cache.snapshot(EPOCH).nodes == ()


def test_a_label_wakes(cache: Counted) -> None:
    cache.nodes.put(node(1))
    cache.nodes.put(node(2, labels={"pool": "gpu"}))
    assert cache.woken == 2


def test_only_resources_of_which_there_are_some_count_as_offered(cache: Counted) -> None:
    cache.nodes.put(node(1))
    (view,) = cache.snapshot(EPOCH).nodes
    assert view.allocatable == {"cpu", "nvidia.com/mig-1g.18gb"}
    assert view.ready


def test_a_gpu_node_that_cannot_be_read_is_no_news(cache: Counted) -> None:
    cache.nodes.put(node(1))
    cache.gpu_nodes.put({"metadata": {"name": "n1", "resourceVersion": "2"}, "status": {"gpus": "none"}})
    assert not cache.snapshot(EPOCH).nodes[0].has_report


def test_a_gpu_node_without_its_node_is_left_out(cache: Counted) -> None:
    cache.gpu_nodes.put({"metadata": {"name": "n1", "resourceVersion": "2"}})
    assert cache.snapshot(EPOCH).nodes == ()


def test_of_a_gpu_node_only_what_a_plan_reads_counts(cache: Counted) -> None:
    for version, moment in enumerate(("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"), 1):
        condition = {"type": "AgentReady", "status": "True", "reason": "Ready", "lastTransitionTime": moment}
        metadata = {"name": "n1", "generation": 1, "resourceVersion": str(version), "managedFields": [{"time": moment}]}
        cache.gpu_nodes.put({"metadata": metadata, "status": {"conditions": [condition], "observedGeneration": 1}})
    assert cache.woken == 1


def test_a_rewritten_share_that_says_the_same_wakes_nobody(cache: Counted) -> None:
    cache.shares.put(share(1))
    cache.shares.put(share(2, managedFields=[{}]))
    assert cache.woken == 1


def test_a_share_that_cannot_be_read_is_named_with_the_reason(cache: Counted) -> None:
    cache.shares.put({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"clients": "none"}})
    with pytest.raises(UnreadableError, match='GpuShare "a" cannot be read, so nothing is changed: 1 validation error'):
        cache.snapshot(EPOCH)


def test_a_share_is_gone_with_the_answer_that_took_its_last_finalizer(cache: Counted) -> None:
    """Its deletion event may be lost: kopf does not report what is missing when its watch begins again."""
    cache.shares.put(share(1, finalizers=["f"], deletionTimestamp="2026-01-01T00:00:00Z"))
    cache.applied(GPU_SHARES, share(2, finalizers=[], deletionTimestamp="2026-01-01T00:00:00Z"))
    assert cache.snapshot(EPOCH).shares == ()


def test_a_daemon_set_that_somebody_changed_is_not_as_applied(cache: Counted) -> None:
    applied = {"metadata": {"name": "d", "namespace": "ns", "generation": 3, "resourceVersion": "1"}}
    cache.daemon_sets.put(applied)
    assert not cache.is_as_applied("d", cache.daemon_sets.objects["ns", "d"]), "not since we started"
    cache.applied(DAEMON_SETS, applied)
    assert cache.is_as_applied("d", cache.daemon_sets.objects["ns", "d"])
    edited = {"metadata": {**applied["metadata"], "generation": 4, "resourceVersion": "2"}}
    cache.daemon_sets.put(edited)
    assert not cache.is_as_applied("d", cache.daemon_sets.objects["ns", "d"])


def test_an_answer_wakes_the_plan_for_changes_of_others_alone(cache: Counted) -> None:
    cache.shares.put(share(1, generation=1))
    cache.nodes.put(node(1))
    before = cache.woken
    cache.applied(GPU_SHARES, share(2, generation=1) | {"status": {"nodes": 1}})
    cache.observe(NODES, node(2, labels={"share.gpushare.dev/a": "true"}))
    assert cache.woken == before
    cache.applied(GPU_SHARES, share(3, generation=2) | {"spec": {"clients": CLIENTS | {"perGpu": 2}}})
    assert cache.woken == before + 1


def test_a_change_of_the_slots_held_alone_is_told_apart() -> None:
    seen: list[str] = []
    cache = FleetCache(lambda: seen.append("changed"), lambda: seen.append("counts"))

    def put(version: int, slots: list[int], **assignment: Any) -> None:
        daemon = {"uuid": "GPU-1", "share": "a", "ready": True}
        holders = [{"uuid": "GPU-1", "share": "a", "slots": slots}] if slots else []
        spec = {"assignments": [{"uuid": "GPU-1", "share": "a", **assignment}]}
        metadata = {"name": "n1", "resourceVersion": str(version)}
        cache.gpu_nodes.put({"metadata": metadata, "spec": spec, "status": {"daemons": [daemon], "holders": holders}})

    put(1, [])
    put(2, [0])
    put(3, [0, 1])
    assert seen == ["changed", "counts", "counts"]
    put(4, [0, 1], draining=True)
    put(5, [0], draining=True)
    assert seen[3:] == ["changed", "changed"], "a GPU that drains waits for its last slot"


def test_a_share_whose_amounts_cannot_be_read_counts_as_unreadable(cache: Counted) -> None:
    """The schema compares such amounts as floats, and takes this one for whole bytes."""
    odd = share(1)
    odd["spec"] = {"clients": {"perGpu": 1, "memory": {"default": "16.001061338Gi"}}}
    cache.shares.put(odd)
    with pytest.raises(UnreadableError, match=r"'16\.001061338Gi' is not a whole number"):
        cache.snapshot(EPOCH)
