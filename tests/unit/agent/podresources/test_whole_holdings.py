"""One reading of the kubelet on a node that gives GPUs whole: their ids are UUIDs, under any resource."""

from typing import Any

from gpushare.agent.podresources.holdings import view
from gpushare.agent.podresources.reader import validate_listing
from tests.unit.agent.podresources.held_devices import APP, OTHER, TOOL, held

WHOLE = {("nvidia.com/gpu", "GPU-3"): "w", ("nvidia.com/gpu", "GPU-4"): "w", ("gpushare.dev/own", "GPU-5"): "own"}
HELD = [
    held(APP, "GPU-1::0"),
    held(OTHER, "GPU-3", "nvidia.com/gpu"),
    held(OTHER, "GPU-4", "nvidia.com/gpu"),
    held(TOOL, "GPU-5", "gpushare.dev/own"),
    held(TOOL, "GPU-9", "nvidia.com/gpu"),
]


def test_a_whole_gpu_is_held_by_the_share_that_gives_it() -> None:
    holdings = view(1.0, [("nvidia.com/gpu", "GPU-3"), ("nvidia.com/gpu", "GPU-9")], HELD, whole=WHOLE)
    assert holdings.allocatable == {("w", "GPU-3"): {0}}
    assert holdings.held == {("a", "GPU-1"): {0}, ("w", "GPU-3"): {0}, ("w", "GPU-4"): {0}, ("own", "GPU-5"): {0}}
    assert holdings.whole_gpus() == {OTHER: [("w", "GPU-3"), ("w", "GPU-4")], TOOL: [("own", "GPU-5")]}
    assert holdings.share_gpus() == {APP: ("a", "GPU-1")}, "a client of MPS has one, and no other container is one"
    assert holdings.pods()["w", "GPU-4"] == {"web/y"}


def running(resource: str) -> dict[str, Any]:
    container = {"name": "app", "resources": {"limits": {resource: "2"}}}
    states = [{"name": "app", "state": {"running": {}}}]
    return {
        "metadata": {"namespace": "ns", "name": "pod"},
        "spec": {"containers": [container]},
        "status": {"containerStatuses": states},
    }


def test_a_kubelet_that_forgot_a_whole_gpus_container_is_not_believed() -> None:
    pods = [running("nvidia.com/gpu")]
    assert validate_listing({}, pods, {"nvidia.com/gpu"}) is not None
    assert validate_listing({"nvidia.com/gpu": 1}, pods, {"nvidia.com/gpu"}) is None, "one container, however many GPUs"
    assert validate_listing({}, pods) is None, "no share gives whole GPUs under this name"
