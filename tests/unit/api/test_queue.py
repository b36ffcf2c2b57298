"""A queue for places: what a share counts by places, and what by slots."""

from typing import Any

from gpushare.api.gpushare import GpuShare

CLIENTS: dict[str, Any] = {"perGpu": 8, "processes": 2, "memory": {"default": "8Gi"}}


def share(**clients: Any) -> GpuShare:
    return GpuShare.model_validate({"metadata": {"name": "a"}, "spec": {"clients": CLIENTS | clients}})


def test_memory_and_contexts_are_counted_by_places_and_slots_are_more() -> None:
    plain, queued = share(), share(queue={"slots": 32})
    assert (plain.slots_per_gpu, queued.slots_per_gpu) == (8, 40)
    assert queued.contexts_per_gpu == plain.contexts_per_gpu == 16
    assert queued.full_gpu_limits_mib == plain.full_gpu_limits_mib


def test_a_wait_is_bounded_and_nobody_is_ended_for_a_place_unless_said() -> None:
    plain, queued = share(), share(queue={"slots": 1})
    assert (plain.place_wait_seconds, plain.idle_after_seconds) == (0, None)
    assert (queued.place_wait_seconds, queued.idle_after_seconds) == (3600, None)
    assert share(queue={"slots": 1, "idleAfter": "30m"}).idle_after_seconds == 1800


def test_launches_are_counted_where_a_place_can_be_waited_for() -> None:
    assert [item.counts_launches for item in (share(), share(queue={"slots": 1}), share(classes={}))] == [
        False,
        True,
        True,
    ]
