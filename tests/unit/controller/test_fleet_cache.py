"""What the operator believes: only ever newer, and woken only by what matters."""

from typing import Any

import pytest

from gpushare.controller.fleet_cache import FleetCache
from gpushare.fleet.model import EPOCH
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES


class Watched(FleetCache):
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


@pytest.fixture
def world() -> Watched:
    return Watched()


def test_an_event_that_comes_late_changes_nothing(world: Watched) -> None:
    world.observe(NODES, node(12, labels={"new": ""}))
    world.observe(NODES, node(9))
    assert world.get(NODES, "n1") == node(12, labels={"new": ""})


def test_a_heartbeat_wakes_nobody(world: Watched) -> None:
    world.observe(NODES, node(1, heartbeat="1"))
    world.observe(NODES, node(2, heartbeat="2"))
    assert world.woken == 1


def test_a_label_wakes(world: Watched) -> None:
    world.observe(NODES, node(1))
    world.observe(NODES, node(2, labels={"pool": "gpu"}))
    assert world.woken == 2


def test_a_list_drops_what_was_deleted_unseen_but_not_what_came_later(world: Watched) -> None:
    world.observe(NODES, node(5))
    world.relisted(NODES, [], "4")
    assert world.get(NODES, "n1") is not None
    world.relisted(NODES, [], "6")
    assert world.get(NODES, "n1") is None


def test_an_answer_that_comes_after_the_deletion_does_not_bring_the_object_back(world: Watched) -> None:
    world.observe(NODES, node(5))
    world.deleted(NODES, node(7))
    world.observe(NODES, node(6))
    assert world.get(NODES, "n1") is None
    world.observe(NODES, node(8))
    assert world.get(NODES, "n1") is not None


def test_the_deletion_of_a_predecessor_does_not_remove_its_successor(world: Watched) -> None:
    world.observe(NODES, node(8))
    world.deleted(NODES, node(7))
    assert world.get(NODES, "n1") is not None


def test_only_resources_of_which_there_are_some_count_as_offered(world: Watched) -> None:
    world.observe(NODES, node(1))
    (view,) = world.snapshot(EPOCH).nodes
    assert view.allocatable == {"cpu", "nvidia.com/mig-1g.18gb"}
    assert view.ready


def test_a_gpu_node_that_cannot_be_read_is_no_news(world: Watched) -> None:
    world.observe(NODES, node(1))
    broken = {"metadata": {"name": "n1", "resourceVersion": "2"}, "status": {"gpus": "none"}}
    world.observe(GPU_NODES, broken)
    assert not world.snapshot(EPOCH).nodes[0].has_news


def test_a_gpu_node_without_its_node_is_left_out(world: Watched) -> None:
    world.observe(GPU_NODES, {"metadata": {"name": "n1", "resourceVersion": "2"}})
    assert world.snapshot(EPOCH).nodes == ()


def test_a_rewritten_share_that_says_the_same_wakes_nobody(world: Watched) -> None:
    share = {
        "metadata": {"name": "a", "resourceVersion": "1"},
        "spec": {"clients": {"perGpu": 1, "memory": {"default": "1Gi"}}},
    }
    world.observe(GPU_SHARES, share)
    world.observe(GPU_SHARES, share | {"metadata": {"name": "a", "resourceVersion": "2", "managedFields": [{}]}})
    assert world.woken == 1
