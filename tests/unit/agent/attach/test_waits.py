"""The event of a container that waits for a place: once a wait, with its position, and with whom it may know."""

from typing import Any

from msgspec import structs

from gpushare.agent.attach.waits import wait_events
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import BrokerState, PlaceHolder, PlacesInUse, QueuedContainer
from tests.unit.agent.observed_pods import UUID, pod, uid


def stranger(number: int) -> Any:
    made = pod(number)
    made["metadata"]["namespace"] = "secret"
    return made


PODS = pods_by_cgroup_uid([pod(1), pod(2), stranger(3), stranger(4)])
HELD = [PlaceHolder(pod_uid=uid(number), container="app", since=1.0) for number in (2, 3, 4)]
QUEUE = [QueuedContainer(pod_uid=uid(1), container="app", since=100.0, position=3)]
STATE = BrokerState(
    uuid=UUID, heartbeat=1.0, listening=True, places=PlacesInUse(limit=3, held=HELD), queue=QUEUE, waiting=7
)


def test_a_wait_is_told_with_position_and_the_namespaces_own_holders() -> None:
    (event,) = wait_events(STATE, "a", PODS, 130.0)
    assert event.regarding["name"] == "pod-1"
    assert "waits for a place since 30 s, at position 3 of 7" in event.note
    assert "3 places, held by pod team/pod-2 and 2 containers of other namespaces." in event.note
    assert "secret" not in event.note


def test_a_wait_is_one_topic_however_the_position_changes() -> None:
    (first,) = wait_events(STATE, "a", PODS, 130.0)
    nearer = structs.replace(STATE, queue=[structs.replace(QUEUE[0], position=1)], waiting=5)
    (second,) = wait_events(nearer, "a", PODS, 160.0)
    (again,) = wait_events(structs.replace(STATE, queue=[structs.replace(QUEUE[0], since=170.0)]), "a", PODS, 180.0)
    assert (first.topic, first.content) == (second.topic, second.content)
    assert (first.topic, first.content != again.content) == (again.topic, True)


def test_a_short_wait_and_a_pod_that_is_not_known_are_no_news() -> None:
    assert list(wait_events(STATE, "a", PODS, 104.0)) == []
    assert list(wait_events(STATE, "a", {}, 130.0)) == []
    assert list(wait_events(structs.replace(STATE, places=None), "a", PODS, 130.0)) == []


def test_a_gpu_that_gives_no_place_says_so() -> None:
    (event,) = wait_events(structs.replace(STATE, places=PlacesInUse(limit=3)), "a", PODS, 130.0)
    assert "No place is given just now." in event.note
