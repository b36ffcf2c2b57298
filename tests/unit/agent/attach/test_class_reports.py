"""What clients with a class say of themselves becomes events of their pods."""

from typing import Any

from gpushare.agent.attach.class_reports import ClassReports
from gpushare.api.conditions import EventReason
from gpushare.kube.events.event import NOTE_BYTES, Event
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import BrokerState, ClientActivity, GaveWayTo, Kernel
from tests.unit.agent.observed_pods import UUID, pod, uid

PODS = pods_by_cgroup_uid([pod(1), pod(2)])


def client(number: int, client_class: str, **fields: Any) -> ClientActivity:
    return ClientActivity(
        pid=number, started=1, pod_uid=uid(number), container="app", client_class=client_class, **fields
    )


def events(reports: ClassReports, *clients: ClientActivity) -> list[Event]:
    state = BrokerState(uuid=UUID, heartbeat=0.0, listening=True, activity=list(clients))
    return reports.update(state, "a", PODS)


def held_back(seconds: float, number: int = 2) -> ClientActivity:
    to = GaveWayTo(pid=1, started=1, seconds=seconds)
    return client(number, "BestEffort", gave_way_seconds=seconds, gave_way_to=[to])


def test_a_protected_process_that_is_always_busy_is_named() -> None:
    reports, busy = ClassReports(), client(1, "Protected", busy_share=1.0, sealed=True)
    assert events(reports, busy, held_back(5.0)) == [], "nobody is known to have given way since"
    [event] = events(reports, busy, held_back(6.0))
    assert (event.reason, event.regarding["name"], event.type) == (EventReason.ALWAYS_BUSY, "pod-1", "Warning")
    assert events(reports, busy, held_back(6.0)) == [], "nobody gives way to it"
    assert events(reports, client(1, "Protected", busy_share=0.9, sealed=True), held_back(7.0)) == []
    assert events(reports, client(1, "Protected", busy_share=None, sealed=True), held_back(8.0)) == []


def test_a_page_that_cannot_be_true_is_told_on_its_pod() -> None:
    [event] = events(ClassReports(), client(2, "Normal", fault="launches went from 5 back to 4"))
    assert (event.reason, event.regarding["name"]) == (EventReason.ACTIVITY_INVALID, "pod-2")
    assert "launches went from 5 back to 4" in event.note


def test_a_protected_process_that_never_seals_its_page_is_told() -> None:
    reports, unsealed = ClassReports(), client(1, "Protected", sealed=False)
    assert events(reports, unsealed) == [], "it may be about to"
    [event] = events(reports, unsealed)
    assert (event.reason, event.regarding["name"]) == (EventReason.ACTIVITY_INVALID, "pod-1")
    assert "nobody gives way to it" in event.note
    assert events(reports, client(1, "Protected", sealed=True)) == []


def test_kernels_of_best_effort_are_told_again_when_the_longest_doubled() -> None:
    def of(milliseconds: float, client_class: str = "BestEffort") -> list[Event]:
        longest = [Kernel(name="gemm", seconds=milliseconds / 1000), Kernel(name="softmax", seconds=0.001)]
        return events(ClassReports(), client(2, client_class, longest=longest))

    assert of(1.9) == of(50.0, "Normal") == []
    [event] = of(4.4)
    assert "gemm 4.4 ms, softmax 1.0 ms" in event.note
    assert of(4.5)[0].content == event.content != of(9.0)[0].content


def test_a_note_fits_however_long_the_names_are() -> None:
    longest = [Kernel(name="k" * 55, seconds=99.0)] * 5
    [event] = events(ClassReports(), client(2, "BestEffort", longest=longest))
    assert len(event.note.encode()) <= NOTE_BYTES


def test_a_pod_that_is_not_known_has_no_event() -> None:
    assert events(ClassReports(), client(3, "Normal", fault="x")) == []
