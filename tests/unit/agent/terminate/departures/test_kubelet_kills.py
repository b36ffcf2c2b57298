"""Terminations that the kubelet decides by itself: what its events say, which pods they concern, and the grace."""

from typing import Any

import pytest

from gpushare.agent.terminate.departures import Departure, DepartureTracker, first_departure
from gpushare.agent.terminate.kubelet_kills import (
    LACK,
    POD_REASONS,
    REJECTIONS,
    KubeletKill,
    grace_seconds,
    kubelet_kill,
    watched_namespaces,
)
from gpushare.api.timestamps import parse_timestamp
from gpushare.process.procfs import Owner
from localcluster.paths import REPOSITORY
from tests.unit.agent.departing_pods import CONTAINER, pod, uid

WALL = 1767225600.0
"""2026-01-01T00:00:00Z, when the events of these tests happened."""
OTHER = "cd" * 32
APP, SIDE = Owner(uid(1), CONTAINER), Owner(uid(1), OTHER)
EARLY, LATE = 1.0, 110.0
"""CLOCK_BOOTTIME seconds: when a process started that was there before any kill of these tests, which come at 100; and
one that was not."""
LIVENESS = "Container app failed liveness probe, will be restarted"


def event(**changes: Any) -> Any:
    about = {"kind": "Pod", "namespace": "team", "name": "pod-1", "uid": uid(1), "fieldPath": "spec.containers{app}"}
    return {
        "metadata": {"name": "pod-1.1", "namespace": "team", "uid": "e"},
        "source": {"component": "kubelet", "host": "here"},
        "involvedObject": about | changes.pop("about", {}),
        "reason": "Killing",
        "message": "Stopping container app",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        **changes,
    }


def kill(**changes: Any) -> KubeletKill:
    reported = kubelet_kill(event(**changes), "here")
    assert reported is not None
    return reported


EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory. ", "about": {"fieldPath": ""}}
PREEMPTED = {"reason": "Preempting", "message": "Preempted in order to admit critical pod", "about": {"fieldPath": ""}}
EXPIRED = {
    "reason": "DeadlineExceeded",
    "message": "Pod was active on the node longer than the specified deadline",
    "about": {"fieldPath": ""},
}
REJECTED = {
    "reason": "OutOfgpushare.dev/inference",
    "message": "Node didn't have enough resource: gpushare.dev/inference, requested: 1, used: 4, capacity: 0",
    "about": {"fieldPath": ""},
}
"""The status of a rejected pod as the kubelet of Kubernetes 1.37 writes it."""


@pytest.mark.parametrize(
    ("given", "container"),
    [
        (event(), "app"),
        (event(about={"fieldPath": "spec.initContainers{side}"}), "side"),
        (event(**EVICTED), ""),
        (event(**PREEMPTED), ""),
        (event(**EXPIRED), ""),
        (event(**REJECTED), ""),
        (event(**REJECTED | {"reason": "NodeAffinity"}), ""),
    ],
    ids=["a container", "a sidecar", "an eviction", "a preemption", "a pod's own deadline", "a lack", "a mismatch"],
)
def test_an_event_of_the_kubelet_that_reports_an_end(given: Any, container: str) -> None:
    reported = kubelet_kill(given, "here")
    assert reported is not None
    assert (reported.pod_uid, reported.namespace, reported.pod) == (uid(1), "team", "pod-1")
    assert (reported.container, reported.at) == (container, WALL)


@pytest.mark.parametrize(
    "given",
    [
        event(reason="Started"),
        event(source={"component": "kubelet", "host": "elsewhere"}),
        event(source={"component": "my-controller", "host": "here"}),
        event(about={"kind": "Node"}),
        event(about={"fieldPath": ""}),
    ],
    ids=["another reason", "another node", "another reporter", "another kind", "no container"],
)
def test_what_is_no_end_of_a_container_of_this_node(given: Any) -> None:
    assert kubelet_kill(given, "here") is None


def with_probes(**probes: Any) -> Any:
    made = pod()
    made["spec"]["terminationGracePeriodSeconds"] = 40
    made["spec"]["containers"][0] |= probes
    return made


@pytest.mark.parametrize(
    ("reported", "given", "seconds"),
    [
        pytest.param(kill(), with_probes(), 40, id="the pod's grace period"),
        pytest.param(kill(), pod(), 30, id="Kubernetes' default"),
        pytest.param(kill(**EVICTED), with_probes(), 1, id="an eviction for pressure has one second"),
        pytest.param(kill(**PREEMPTED), with_probes(), 40, id="a preemption leaves the pod's grace period"),
        pytest.param(kill(**EXPIRED), with_probes(), 40, id="so does a deadline"),
        pytest.param(kill(**REJECTED), with_probes(), 1, id="a rejected pod is killed like an orphan"),
        pytest.param(kill(message="killing"), with_probes(), 0, id="a restart with all others leaves none"),
        pytest.param(
            kill(message=LIVENESS),
            with_probes(livenessProbe={"terminationGracePeriodSeconds": 5}),
            5,
            id="a probe's own grace period",
        ),
        pytest.param(kill(message=LIVENESS), with_probes(livenessProbe={}), 40, id="a probe without one"),
        pytest.param(
            kill(), with_probes(livenessProbe={"terminationGracePeriodSeconds": 5}), 40, id="not for its probe"
        ),
    ],
)
def test_how_long_a_container_has(reported: KubeletKill, given: Any, seconds: float) -> None:
    assert grace_seconds(reported, given) == seconds


def update(tracker: DepartureTracker, given: Any, now: float = 0.0) -> tuple[Departure, ...]:
    return tracker.update({uid(1): given}, now, WALL).get(uid(1), ())


def test_only_the_container_that_is_killed_departs() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    assert tracker.add_kill(kill(message=LIVENESS), {uid(1): departing_pod}, 100.0, WALL)
    departing = update(tracker, departing_pod, now=100.0)
    departure = first_departure(departing, APP, EARLY)
    assert departure is not None
    assert departure.kill_at == 130.0
    assert departure.why == f"loses container app, which the kubelet ends ({LIVENESS})"
    assert first_departure(departing, SIDE, EARLY) is None


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        (kill(**EVICTED), "is evicted by the kubelet (The node was low on resource: memory)"),
        (
            kill(**PREEMPTED),
            "is preempted by the kubelet for a critical pod (Preempted in order to admit critical pod)",
        ),
        (
            kill(**EXPIRED),
            "has been active for longer than its activeDeadlineSeconds "
            "(Pod was active on the node longer than the specified deadline)",
        ),
    ],
    ids=["evicted", "preempted", "past its deadline"],
)
def test_a_pod_that_the_kubelet_ends_departs_with_all_its_containers(reported: KubeletKill, why: str) -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    tracker.add_kill(reported, {uid(1): departing_pod}, 100.0, WALL)
    departing = update(tracker, departing_pod, now=100.0)
    assert [first_departure(departing, owner, EARLY) is not None for owner in (APP, SIDE)] == [True, True]
    assert departing[0].why == why


def test_the_pods_reason_stays_when_events_of_its_containers_follow() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    assert tracker.add_kill(kill(**PREEMPTED), {uid(1): departing_pod}, 100.0, WALL)
    assert not tracker.add_kill(kill(), {uid(1): departing_pod}, 100.1, WALL)
    [departing] = update(tracker, departing_pod, now=100.2)
    assert "critical pod" in departing.why


def test_the_event_of_a_container_restarted_with_all_others_says_so() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    tracker.add_kill(kill(message="killing"), {uid(1): departing_pod}, 100.0, WALL)
    [departing] = update(tracker, departing_pod, now=100.0)
    assert departing.why == "loses container app, which the kubelet restarts together with all others of the pod"


def test_a_pod_rejected_by_a_restarted_kubelet_departs_though_failed() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    assert tracker.add_kill(kill(**REJECTED), {uid(1): departing_pod}, 100.0, WALL)
    [departing] = update(tracker, pod(phase="Failed"), now=100.1)
    assert departing.why.startswith("is rejected by its kubelet after a restart (Node didn't have enough resource")


def test_a_rejected_pod_that_never_ran_has_nothing_to_lose() -> None:
    assert not DepartureTracker().add_kill(kill(**REJECTED), {uid(1): pod(phase="Pending")}, 100.0, WALL)


@pytest.mark.parametrize("reported", [kill(**PREEMPTED), kill(**EXPIRED), kill()], ids=lambda reported: reported.reason)
def test_a_pod_that_is_being_deleted_keeps_the_time_of_its_deletion(reported: KubeletKill) -> None:
    tracker, deleted = DepartureTracker(), pod(grace=3600)
    update(tracker, pod(), now=100.0)
    assert not tracker.add_kill(reported, {uid(1): deleted}, 110.0, WALL)
    assert [item.kill_at for item in update(tracker, deleted, now=110.0)] == [3710.0]


def test_a_container_that_was_started_again_is_not_the_one_that_was_killed() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    tracker.add_kill(kill(), {uid(1): departing_pod}, 100.0, WALL)
    successor = pod(containerStatuses=[{"name": "app", "containerID": f"containerd://{OTHER}"}])
    assert first_departure(update(tracker, successor, now=105.0), SIDE, EARLY) is None


def test_an_event_after_the_containers_next_start_does_not_count() -> None:
    running = {"running": {"startedAt": "2026-01-01T00:00:09Z"}}
    successor = pod(containerStatuses=[{"name": "app", "containerID": f"containerd://{OTHER}", "state": running}])
    assert not DepartureTracker().add_kill(kill(), {uid(1): successor}, 100.0, WALL + 15)


def test_an_event_that_comes_late_leaves_less_time() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    tracker.add_kill(kill(), {uid(1): departing_pod}, 100.0, WALL + 12)
    assert update(tracker, departing_pod, now=100.0)[0].kill_at == 118.0
    assert not DepartureTracker().add_kill(kill(), {uid(1): departing_pod}, 100.0, WALL + 60)


def test_the_status_may_not_know_the_container_yet() -> None:
    tracker, departing_pod = DepartureTracker(), pod(containerStatuses=[])
    tracker.add_kill(kill(), {uid(1): departing_pod}, 100.0, WALL)
    assert first_departure(update(tracker, departing_pod, now=100.0), APP, EARLY) is not None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (pod(2), "another pod"),
        (pod(phase="Failed"), "a pod that has ended"),
        ({**pod(), "spec": {"containers": [{"name": "app"}]}}, "a pod without a GPU"),
        ({**pod(), "metadata": {**pod()["metadata"], "namespace": "victim"}}, "a pod of another namespace"),
        ({**pod(), "metadata": {**pod()["metadata"], "name": "other"}}, "a uid that is another pod's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_pods_an_event_does_not_concern(given: Any, why: str) -> None:
    assert not DepartureTracker().add_kill(kill(), {uid(1): given}, 0.0, WALL), why


def test_a_container_of_a_pod_that_is_deleted_later_has_the_time_of_that() -> None:
    tracker, deleted = DepartureTracker(), pod(grace=3600)
    tracker.add_kill(kill(), {uid(1): pod()}, 100.0, WALL)
    update(tracker, pod(), now=100.0)
    assert [item.kill_at for item in update(tracker, deleted, now=101.0)] == [3701.0]


def test_an_eviction_shortens_the_time_of_a_deletion() -> None:
    tracker, deleted = DepartureTracker(), pod(grace=3600)
    update(tracker, pod(), now=100.0)
    assert tracker.add_kill(kill(**EVICTED), {uid(1): deleted}, 200.0, WALL)
    departure = first_departure(update(tracker, deleted, now=200.0), APP, EARLY)
    assert departure is not None
    assert departure.kill_at == 201.0


def test_a_killed_container_is_forgotten_once_its_time_is_well_over() -> None:
    tracker, departing_pod = DepartureTracker(), pod()
    tracker.add_kill(kill(), {uid(1): departing_pod}, 100.0, WALL)
    assert update(tracker, departing_pod, now=139.0)
    assert not update(tracker, departing_pod, now=141.0)


def test_only_a_node_may_write_an_event_that_counts() -> None:
    policy = (REPOSITORY / "charts/gpushare/templates/policies/kubelet-events.yaml").read_text()
    assert [reason for reason in ("Killing", *POD_REASONS, *REJECTIONS) if f"'{reason}'" not in policy] == []
    assert f"startsWith('{LACK}')" in policy


def of_namespace(namespace: str, **status: Any) -> Any:
    made = pod(1, **status)
    return {**made, "metadata": {**made["metadata"], "namespace": namespace}}


def test_events_are_watched_only_where_the_kubelet_runs_a_pod_with_clients() -> None:
    """Each namespace is a connection, and whoever may create pods can name any node in them."""
    started = {"startTime": "2026-01-01T00:00:00Z"}
    running = of_namespace("running", **started)
    starting = of_namespace("starting", phase="Pending", **started)
    ended = of_namespace("ended", phase="Failed", **started)
    names_the_node = [of_namespace(f"junk-{number}", phase="Pending") for number in range(1000)]
    without_gpu = {**of_namespace("plain", **started), "spec": {"containers": [{"name": "a"}]}}
    pods = [running, starting, ended, *names_the_node, without_gpu]
    assert watched_namespaces(pods) == {"running", "starting"}


@pytest.mark.parametrize(
    ("started", "killed", "departs"),
    [
        pytest.param("09:00:00", "12:00:00", True, id="started before"),
        pytest.param("12:00:30", "12:00:00", False, id="its successor runs already"),
        pytest.param("15:00:00", "12:00:00", True, id="the clock was set back three hours since the start"),
        pytest.param("15:00:30", "15:00:00", False, id="set back, and its successor ran before that already"),
        pytest.param("12:05:30", "11:59:59", False, id="a successor after the longest back-off, and no clock was set"),
    ],
)
def test_a_container_departs_whenever_its_node_says_that_it_was_started(
    started: str, killed: str, departs: bool
) -> None:
    """It is twelve o'clock on the node."""
    noon = parse_timestamp("2026-01-01T12:00:00Z").timestamp()
    running = {"running": {"startedAt": f"2026-01-01T{started}Z"}}
    departing_pod = pod(
        containerStatuses=[{"name": "app", "containerID": f"containerd://{CONTAINER}", "state": running}]
    )
    reported = kill(lastTimestamp=f"2026-01-01T{killed}Z")
    assert DepartureTracker().add_kill(reported, {uid(1): departing_pod}, 100.0, noon + 1) is departs


@pytest.mark.parametrize("state", [{"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 1}}, {}])
def test_clients_of_an_unseen_instance_are_ended_and_not_its_successors(
    state: dict[str, Any],
) -> None:
    """A container starts again: until its postStart hook has ended, the status shows the instance before."""
    tracker, departing_pod = DepartureTracker(), pod()
    departing_pod["status"]["containerStatuses"][0]["state"] = state
    tracker.add_kill(kill(message="FailedPostStartHook"), {uid(1): departing_pod}, 100.0, WALL)
    departing = update(tracker, departing_pod, now=100.0)
    assert first_departure(departing, SIDE, EARLY) is not None
    assert first_departure(departing, SIDE, LATE) is None
