"""What one reading of the kubelet says: whose slots are where, and which one two containers have."""

from typing import Any

import pytest

from gpushare.agent.kubelet.duplicates import LASTING_SECONDS, DuplicateAllocations
from gpushare.agent.kubelet.holdings import ContainerName, HeldDevice, KubeletView, view
from gpushare.api.conditions import EventReason

APP: ContainerName = ("ml", "x", "app")
TOOL: ContainerName = ("ml", "x", "tool")
OTHER: ContainerName = ("web", "y", "app")


def held(whose: ContainerName, device_id: str, resource: str = "gpushare.dev/a") -> HeldDevice:
    return HeldDevice(*whose, resource, device_id)


def pod(whose: ContainerName, phase: str = "Running") -> dict[str, Any]:
    namespace, name, _ = whose
    return {"metadata": {"namespace": namespace, "name": name, "uid": f"uid-{name}"}, "status": {"phase": phase}}


READING = [
    held(APP, "GPU-1::0"),
    held(OTHER, "GPU-1::7"),
    held(TOOL, "GPU-2::1", "gpushare.dev/b"),
    held(APP, "eth1", "example.com/nic"),
    held(("gpushare", "mps", "mps"), "mps-0", "internal.gpushare.dev/mps"),
    held(TOOL, "of another release"),
]
TWICE = [held(APP, "GPU-1::0"), held(OTHER, "GPU-1::0")]
PODS = [pod(APP), pod(OTHER)]


def test_only_slots_of_ours_count_and_each_is_somebodys() -> None:
    found = view(1.0, [("gpushare.dev/a", "GPU-1::3"), ("nvidia.com/gpu", "GPU-2")], READING)
    assert found.allocatable == {("a", "GPU-1"): {3}}
    assert found.held == {("a", "GPU-1"): {0, 7}, ("b", "GPU-2"): {1}}
    assert found.pods() == {("a", "GPU-1"): {"ml/x", "web/y"}, ("b", "GPU-2"): {"ml/x"}}
    assert found.share_gpus() == {APP: ("a", "GPU-1"), OTHER: ("a", "GPU-1"), TOOL: ("b", "GPU-2")}
    assert found.containers() == {"a": 2, "b": 1}


def test_a_reading_tells_when_each_newcomer_was_not_listed_yet() -> None:
    app, other = held(APP, "GPU-1::0"), held(OTHER, "GPU-1::1")
    first = view(1.0, [], [app])
    assert first.absent == {}, "of the first reading's nothing is known"
    second = view(2.0, [], [app, other], first)
    third = view(3.0, [], [app, other], second)
    assert second.absent == third.absent == {"web/y": 1.0}
    gone = view(4.0, [], [other], third)
    assert view(5.0, [], [app, other], gone).absent == {"web/y": 1.0, "ml/x": 4.0}


def test_a_slot_that_two_containers_have_is_one_slot_and_counts_for_both() -> None:
    found = view(1.0, [], TWICE)
    assert found.held == {("a", "GPU-1"): {0}}
    assert found.containers() == {"a": 2}


def reading(at: float, devices: list[HeldDevice]) -> KubeletView:
    return view(at, [], devices)


def test_a_slot_given_twice_is_told_on_both_pods_once_it_lasts() -> None:
    doubled = DuplicateAllocations()
    assert doubled.look(reading(10.0, TWICE), PODS) == []
    assert doubled.look(reading(10.0, TWICE), PODS) == [], "the same reading tells nothing new"
    told = doubled.look(reading(10.0 + LASTING_SECONDS, TWICE), PODS)
    assert [(news.regarding["uid"], news.reason, news.type) for news in told] == [
        ("uid-x", EventReason.SLOT_GIVEN_TWICE, "Warning"),
        ("uid-y", EventReason.SLOT_GIVEN_TWICE, "Warning"),
    ]
    assert (
        "slot 0 of GPU GPU-1 of GpuShare a to container app of pod ml/x and container app of pod web/y" in told[0].note
    )
    assert doubled.look(reading(20.0, TWICE), PODS) == told, "told the same way, so that it is one event"


@pytest.mark.parametrize(
    ("sentence", "devices", "pods"),
    [
        ("slots of one container each", READING, PODS),
        ("one of the two has ended", TWICE, [pod(APP), pod(OTHER, "Succeeded")]),
        ("one of the two is gone from the API", TWICE, [pod(APP)]),
    ],
)
def test_what_is_nobodys_second_slot_is_not_told(
    sentence: str, devices: list[HeldDevice], pods: list[dict[str, Any]]
) -> None:
    doubled = DuplicateAllocations()
    doubled.look(reading(10.0, devices), pods)
    assert doubled.look(reading(60.0, devices), pods) == [], sentence


def test_a_second_holder_that_comes_anew_waits_anew() -> None:
    doubled = DuplicateAllocations()
    doubled.look(reading(10.0, TWICE), PODS)
    doubled.look(reading(12.0, TWICE[:1]), PODS)
    assert doubled.look(reading(10.0 + LASTING_SECONDS, TWICE), PODS) == []
