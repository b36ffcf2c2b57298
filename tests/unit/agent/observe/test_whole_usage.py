"""Who is on a GPU that is given whole: the container that has it, and whoever should not be there."""

from gpushare.agent.observe.usage import ListedProcess, Reading, reading
from gpushare.agent.observe.violations import NO_GRANT_SECONDS, ViolationTracker, message, violations
from gpushare.api.conditions import EventReason
from gpushare.kube.pods import pods_by_cgroup_uid
from tests.unit.agent.observed_pods import UUID, container, owner, pod, process

HOLDER = frozenset({("team", "pod-1", "app")})
WHOLE = container(share=None, grant=None)


def look(*listed: ListedProcess, taken_at: float = 1.0, with_status: bool = True) -> Reading:
    pods = pods_by_cgroup_uid([pod(1, WHOLE, with_status=with_status), pod(2, WHOLE)])
    return reading(UUID, "w", taken_at, 143155, listed, pods, None, holders=HOLDER)


def test_the_container_that_has_the_gpu_may_do_on_it_what_it_wants() -> None:
    """Any memory, any number of processes, and an MPS daemon of its own."""
    reading = look(process(11, 143000, mps=False), process(12, 90000, mps=True))
    assert [(usage.container, usage.slot, usage.grant) for usage in reading.usages] == [("app", True, None)] * 2
    assert violations(reading) == []


def test_an_unknown_container_is_the_one_that_has_the_whole_gpu() -> None:
    assert violations(look(process(11, mps=False), with_status=False)) == []


def test_whoever_else_is_on_it_is_named() -> None:
    others = look(process(11, 300, owner(2), mps=False), process(12, 200, host=True, mps=False))
    judged = violations(others)
    assert [item.reason for item in judged] == [EventReason.NOT_THE_HOLDER] * 2
    assert all(item.to_end == () for item in judged), "nobody is ended for it"
    assert message(judged[0]) == (
        "container app of pod team/pod-2 uses 300 MiB on GPU GPU-0 of GpuShare w, "
        "which another container or nobody has whole"
    )
    assert message(judged[1]).startswith("process 12 of the host uses 200 MiB")


def test_a_process_that_outlives_its_pod_by_a_moment_is_no_finding() -> None:
    tracker = ViolationTracker([], 0.0, clear_seconds=10.0)
    stranger = process(11, 300, owner(2), mps=False)
    at = 0.0
    while at < NO_GRANT_SECONDS:
        tracker.judge([look(stranger, taken_at=at)], {UUID: "w"}, "2026-01-01T00:00:00Z")
        assert tracker.findings() == []
        at += 2.0
    tracker.judge([look(stranger, taken_at=at)], {UUID: "w"}, "2026-01-01T00:00:00Z")
    (finding,) = tracker.findings()
    assert (finding.reason, finding.pod, finding.granted, finding.observed) == ("NotTheHolder", "pod-2", 0, 300)
