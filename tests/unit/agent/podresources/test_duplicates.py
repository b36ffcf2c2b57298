"""Events for slots that two containers have."""

from typing import Any

import pytest

from gpushare.agent.podresources.duplicates import LASTING_SECONDS, DuplicateAllocations
from gpushare.agent.podresources.holdings import HeldDevice, KubeletView, view
from gpushare.api.conditions import EventReason
from tests.unit.agent.podresources.held_devices import APP, OTHER, PODS, READING, TWICE, pod


def reading(at: float, devices: list[HeldDevice]) -> KubeletView:
    return view(at, [], devices)


def test_a_slot_given_twice_is_an_event_of_both_pods_once_it_lasts() -> None:
    duplicates = DuplicateAllocations()
    assert duplicates.look(reading(10.0, TWICE), PODS) == []
    assert duplicates.look(reading(10.0, TWICE), PODS) == [], "the same reading shows nothing new"
    events = duplicates.look(reading(10.0 + LASTING_SECONDS, TWICE), PODS)
    assert [(event.regarding["uid"], event.reason, event.type) for event in events] == [
        ("uid-x", EventReason.DUPLICATE_ALLOCATION, "Warning"),
        ("uid-y", EventReason.DUPLICATE_ALLOCATION, "Warning"),
    ]
    note = events[0].note
    assert "slot 0 of GPU GPU-1 of GpuShare a to container app of pod ml/x and container app of pod web/y" in note
    assert duplicates.look(reading(20.0, TWICE), PODS) == events, "the same, so that it is one event"


@pytest.mark.parametrize(
    ("sentence", "devices", "pods"),
    [
        ("slots of one container each", READING, PODS),
        ("one of the two has ended", TWICE, [pod(APP), pod(OTHER, "Succeeded")]),
        ("one of the two is gone from the API", TWICE, [pod(APP)]),
    ],
)
def test_a_slot_of_one_container_is_no_event(
    sentence: str, devices: list[HeldDevice], pods: list[dict[str, Any]]
) -> None:
    duplicates = DuplicateAllocations()
    duplicates.look(reading(10.0, devices), pods)
    assert duplicates.look(reading(60.0, devices), pods) == [], sentence


def test_a_second_holder_that_comes_anew_waits_anew() -> None:
    duplicates = DuplicateAllocations()
    duplicates.look(reading(10.0, TWICE), PODS)
    duplicates.look(reading(12.0, TWICE[:1]), PODS)
    assert duplicates.look(reading(10.0 + LASTING_SECONDS, TWICE), PODS) == []
