"""What a broker refused becomes events that say who, why and what to do."""

from typing import Any

import pytest

from gpushare.agent.attach.refusals import WHAT_TO_DO, NewRefusal, RefusalReports
from gpushare.api.conditions import EventReason
from gpushare.kube.events.correlator import EventCorrelator
from gpushare.kube.events.event import NOTE_BYTES
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import AttachRefusal, BrokerState, RefusedAttach
from tests.unit.agent.observed_pods import container_id, pod, uid

GPU = "GPU-0"
PODS = pods_by_cgroup_uid([pod()])


def refusal(reason: RefusedAttach = RefusedAttach.TOO_MANY_PROCESSES, **fields: Any) -> AttachRefusal:
    values = {
        "pod_uid": uid(1),
        "container": "app",
        "container_id": container_id(10),
        "message": "2 of 2 processes of container app have attached",
        "count": 1,
        "at": 101.0,
    }
    return AttachRefusal(reason=reason, **values | fields)


@pytest.fixture
def reports() -> RefusalReports:
    return RefusalReports("here", started=100.0)


def new(reports: RefusalReports, *refusals: AttachRefusal) -> list[NewRefusal]:
    return reports.update(BrokerState(uuid=GPU, heartbeat=0.0, listening=True, refusals=list(refusals)), "a", PODS)


def test_a_refusal_is_an_event_of_the_pod_that_says_who_why_and_what_to_do(reports: RefusalReports) -> None:
    [report] = new(reports, refusal())
    [event] = report.events
    assert (report.share, report.reason, report.count) == ("a", RefusedAttach.TOO_MANY_PROCESSES, 1)
    assert (event.type, event.reason) == ("Warning", EventReason.ATTACH_REFUSED)
    assert (event.regarding["kind"], event.regarding["name"], event.regarding["uid"]) == ("Pod", "pod-1", uid(1))
    assert event.note == (
        "GPU GPU-0 of GpuShare a: a process of container app of pod team/pod-1 could not attach (TooManyProcesses): "
        "2 of 2 processes of container app have attached. Start fewer processes that use CUDA, or have "
        "clients.processes of the GpuShare raised."
    )


def test_only_what_is_new_is_reported_and_what_comes_again_counts_up(reports: RefusalReports) -> None:
    correlator = EventCorrelator()
    counts = []
    for listed in (refusal(), refusal(), refusal(count=4, at=103.0, message="another PID")):
        for report in new(reports, listed):
            result = correlator.correlate(report.events[0], 0.0)
            assert result is not None
            counts.append((report.count, result.count))
    assert counts == [(1, 1), (3, 2)]


def test_each_container_and_each_reason_is_an_event_of_its_own(reports: RefusalReports) -> None:
    listed = new(
        reports,
        refusal(),
        refusal(RefusedAttach.GPU_CLOSED),
        refusal(container="other", container_id=container_id(11)),
    )
    assert len({event.topic for report in listed for event in report.events}) == 3


def test_a_broker_that_counts_from_1_again_refused_once_more(reports: RefusalReports) -> None:
    new(reports, refusal(count=5))
    [report] = new(reports, refusal(count=1, at=105.0))
    assert report.count == 1


def test_a_refusal_before_the_agents_start_is_told_once_and_not_counted(
    reports: RefusalReports,
) -> None:
    [report] = new(reports, refusal(at=99.0))
    assert report.count == 0
    assert not report.events[0].happened, "a repetition for the next agent"
    [report] = new(reports, refusal(at=102.0, count=2))
    assert (report.count, report.events[0].happened) == (1, True)


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        ({"pod_uid": "", "container": "", "container_id": ""}, "a process of no pod"),
        ({"pod_uid": "gone"}, "container app of pod gone, which the API does not know,"),
    ],
)
def test_a_process_of_no_known_pod_is_reported_on_the_gpunode(
    reports: RefusalReports, fields: dict[str, str], who: str
) -> None:
    [report] = new(reports, refusal(RefusedAttach.COMMAND, **fields))
    assert (report.events[0].regarding["kind"], report.events[0].regarding["name"]) == ("GpuNode", "here")
    assert who in report.events[0].note


def test_a_container_without_a_name_is_named_by_its_id(reports: RefusalReports) -> None:
    [report] = new(reports, refusal(container=""))
    assert f"container {container_id(10)[:12]} of pod team/pod-1" in report.events[0].note


def test_who_hung_the_mps_server_is_told_on_the_gpunode_too(reports: RefusalReports) -> None:
    [report] = new(reports, refusal(RefusedAttach.SERVER_HUNG, message="it answers no more"))
    of_pod, of_node = report.events
    assert (of_pod.reason, of_pod.regarding["kind"]) == (EventReason.ATTACH_REFUSED, "Pod")
    assert (of_node.reason, of_node.regarding["kind"]) == (EventReason.SERVER_HUNG, "GpuNode")
    assert "container app of pod team/pod-1 hung the MPS server" in of_node.note


@pytest.mark.parametrize("reason", RefusedAttach)
def test_every_reason_says_what_to_do_within_the_length_of_a_note(
    reports: RefusalReports, reason: RefusedAttach
) -> None:
    [report] = new(reports, refusal(reason, message="x" * 400, container="c" * 63))
    assert report.events[0].note.endswith(WHAT_TO_DO[reason])
    assert len(report.events[0].note) <= NOTE_BYTES


def test_a_gpu_that_was_given_back_is_forgotten(reports: RefusalReports) -> None:
    new(reports, refusal())
    reports.keep({})
    assert [report.count for report in new(reports, refusal())] == [1]
