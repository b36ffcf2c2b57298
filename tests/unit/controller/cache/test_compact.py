"""What is kept of thousands of GpuNodes: less memory, and the same values."""

from typing import Any

from gpushare.api.gpunode import GpuNode
from gpushare.controller.cache.compact import compact


def gpu_node(number: int) -> GpuNode:
    limits = {"threads": 50, "memoryMib": 16384}
    daemon: dict[str, Any] = {"uuid": f"GPU-{number}", "share": "a", "desiredLimits": limits, "currentLimits": limits}
    gpu = {"uuid": f"GPU-{number}", "index": 0, "minor": 0, "product": "".join(["NVIDIA", " H200"]), "memoryMib": 1}
    status = {"gpus": [gpu | {"sms": 132, "computeMode": "Default"}], "daemons": [daemon]}
    spec = {"assignments": [{"uuid": f"GPU-{number}", "share": "a"}]}
    return GpuNode.model_validate({"metadata": {"name": f"n{number}"}, "spec": spec, "status": status})


def test_values_stay_and_what_is_the_same_on_every_node_is_kept_once() -> None:
    first, second = compact(gpu_node(1)), compact(gpu_node(2))
    assert first == gpu_node(1)
    assert first.wire() == gpu_node(1).wire()
    some, other = first.status.daemons[0], second.status.daemons[0]
    assert some.desired_limits is some.current_limits is other.current_limits
    assert first.status.gpus[0].product is second.status.gpus[0].product
    assert first.status.gpus[0].model_fields_set is second.status.gpus[0].model_fields_set


def test_a_changed_copy_leaves_the_others_as_they_are() -> None:
    first, second = compact(gpu_node(1)), compact(gpu_node(2))
    changed = first.status.gpus[0].model_copy(update={"lost": True})
    assert changed.lost
    assert "lost" in changed.model_fields_set
    assert "lost" not in second.status.gpus[0].model_fields_set
    assert second == gpu_node(2)
