"""Terminations that the kubelet decides by itself: what its events say, whom they concern, and for how long."""

from typing import Any

import pytest

from gpushare.agent.process.processes import Owner
from gpushare.agent.termination.departing import Departing, Departures, departure_of
from gpushare.agent.termination.kubelet_kills import LACK, PODS, REJECTIONS, KubeletKill, grace_seconds, kubelet_kill
from localcluster.paths import REPOSITORY
from tests.unit.agent.departing_pods import CONTAINER, pod, uid

WALL = 1767225600.0
"""2026-01-01T00:00:00Z, when the events of these tests happened."""
OTHER = "cd" * 32
APP, SIDE = Owner(uid(1), CONTAINER), Owner(uid(1), OTHER)
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


def killing(**changes: Any) -> KubeletKill:
    found = kubelet_kill(event(**changes), "here")
    assert found is not None
    return found


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
"""As the kubelet of Kubernetes 1.37 writes them."""


@pytest.mark.parametrize(
    ("found", "container"),
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
def test_the_kubelets_word_for_an_end(found: Any, container: str) -> None:
    told = kubelet_kill(found, "here")
    assert told is not None
    assert (told.pod_uid, told.namespace, told.pod, told.container) == (uid(1), "team", "pod-1", container)
    assert told.at == WALL


@pytest.mark.parametrize(
    "found",
    [
        event(reason="Started"),
        event(source={"component": "kubelet", "host": "elsewhere"}),
        event(source={"component": "my-controller", "host": "here"}),
        event(about={"kind": "Node"}),
        event(about={"fieldPath": ""}),
    ],
    ids=["another reason", "another node", "another reporter", "another kind", "no container"],
)
def test_what_is_no_end_of_a_container_of_this_node(found: Any) -> None:
    assert kubelet_kill(found, "here") is None


def with_probes(**probes: Any) -> Any:
    found = pod()
    found["spec"]["terminationGracePeriodSeconds"] = 40
    found["spec"]["containers"][0] |= probes
    return found


@pytest.mark.parametrize(
    ("told", "found", "seconds"),
    [
        pytest.param(killing(), with_probes(), 40, id="the pod's grace period"),
        pytest.param(killing(), pod(), 30, id="Kubernetes' default"),
        pytest.param(killing(**EVICTED), with_probes(), 1, id="an eviction for pressure has one second"),
        pytest.param(killing(**PREEMPTED), with_probes(), 40, id="a preemption leaves the pod's grace period"),
        pytest.param(killing(**EXPIRED), with_probes(), 40, id="so does a deadline"),
        pytest.param(killing(**REJECTED), with_probes(), 1, id="what is not taken back is killed like an orphan"),
        pytest.param(killing(message="killing"), with_probes(), 0, id="a restart with all others leaves none"),
        pytest.param(
            killing(message=LIVENESS),
            with_probes(livenessProbe={"terminationGracePeriodSeconds": 5}),
            5,
            id="a probe's own grace period",
        ),
        pytest.param(killing(message=LIVENESS), with_probes(livenessProbe={}), 40, id="a probe without one"),
        pytest.param(
            killing(), with_probes(livenessProbe={"terminationGracePeriodSeconds": 5}), 40, id="not for its probe"
        ),
    ],
)
def test_how_long_a_container_has(told: KubeletKill, found: Any, seconds: float) -> None:
    assert grace_seconds(told, found) == seconds


def look(departures: Departures, found: Any, now: float = 0.0) -> tuple[Departing, ...]:
    return departures.look({uid(1): found}, now, WALL).get(uid(1), ())


def test_only_the_container_that_is_killed_departs() -> None:
    departures, found = Departures(), pod()
    assert departures.kill(killing(message=LIVENESS), {uid(1): found}, 100.0, WALL)
    leaving = look(departures, found, now=100.0)
    departure = departure_of(leaving, APP)
    assert departure is not None
    assert departure.kill_at == 130.0
    assert departure.why == f"loses container app, which the kubelet ends ({LIVENESS})"
    assert departure_of(leaving, SIDE) is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (killing(**EVICTED), "is evicted by the kubelet (The node was low on resource: memory)"),
        (
            killing(**PREEMPTED),
            "has to make room for a critical pod, as the kubelet decided (Preempted in order to admit critical pod)",
        ),
        (
            killing(**EXPIRED),
            "has been active for longer than its activeDeadlineSeconds "
            "(Pod was active on the node longer than the specified deadline)",
        ),
    ],
    ids=["evicted", "preempted", "past its deadline"],
)
def test_a_pod_that_the_kubelet_ends_as_a_whole_departs_with_all_its_containers(told: KubeletKill, why: str) -> None:
    departures, found = Departures(), pod()
    departures.kill(told, {uid(1): found}, 100.0, WALL)
    leaving = look(departures, found, now=100.0)
    assert [departure_of(leaving, owner) is not None for owner in (APP, SIDE)] == [True, True]
    assert leaving[0].why == why


def test_the_containers_of_such_a_pod_are_told_afterwards_and_the_reason_stays_that_of_the_pod() -> None:
    departures, found = Departures(), pod()
    assert departures.kill(killing(**PREEMPTED), {uid(1): found}, 100.0, WALL)
    assert not departures.kill(killing(), {uid(1): found}, 100.1, WALL)
    [leaving] = look(departures, found, now=100.2)
    assert "critical pod" in leaving.why


def test_a_container_that_is_restarted_with_all_others_is_told_so() -> None:
    departures, found = Departures(), pod()
    departures.kill(killing(message="killing"), {uid(1): found}, 100.0, WALL)
    [leaving] = look(departures, found, now=100.0)
    assert leaving.why == "loses container app, which the kubelet restarts together with all others of the pod"


def test_a_pod_that_a_restarted_kubelet_does_not_take_back_departs_even_when_it_is_told_to_have_failed() -> None:
    departures, found = Departures(), pod()
    assert departures.kill(killing(**REJECTED), {uid(1): found}, 100.0, WALL)
    [leaving] = look(departures, pod(phase="Failed"), now=100.1)
    told = "was not taken back by its kubelet, which had restarted (Node didn't have enough resource"
    assert leaving.why.startswith(told)


def test_a_pod_that_never_ran_and_is_not_taken_has_nothing_to_lose() -> None:
    assert not Departures().kill(killing(**REJECTED), {uid(1): pod(phase="Pending")}, 100.0, WALL)


@pytest.mark.parametrize("told", [killing(**PREEMPTED), killing(**EXPIRED), killing()], ids=lambda told: told.reason)
def test_a_pod_that_is_being_deleted_keeps_the_time_of_its_deletion(told: KubeletKill) -> None:
    departures, deleted = Departures(), pod(grace=3600)
    look(departures, pod(), now=100.0)
    assert not departures.kill(told, {uid(1): deleted}, 110.0, WALL)
    assert [item.kill_at for item in look(departures, deleted, now=110.0)] == [3710.0]


def test_a_container_that_was_started_again_is_not_the_one_that_was_killed() -> None:
    departures, found = Departures(), pod()
    departures.kill(killing(), {uid(1): found}, 100.0, WALL)
    successor = pod(containerStatuses=[{"name": "app", "containerID": f"containerd://{OTHER}"}])
    assert departure_of(look(departures, successor, now=105.0), SIDE) is None


def test_an_event_that_comes_after_the_container_was_started_again_is_late_and_counts_no_more() -> None:
    running = {"running": {"startedAt": "2026-01-01T00:00:09Z"}}
    successor = pod(containerStatuses=[{"name": "app", "containerID": f"containerd://{OTHER}", "state": running}])
    assert not Departures().kill(killing(), {uid(1): successor}, 100.0, WALL + 15)


def test_an_event_that_comes_late_leaves_less_time() -> None:
    departures, found = Departures(), pod()
    departures.kill(killing(), {uid(1): found}, 100.0, WALL + 12)
    assert look(departures, found, now=100.0)[0].kill_at == 118.0
    assert not Departures().kill(killing(), {uid(1): found}, 100.0, WALL + 60)


def test_the_status_may_not_know_the_container_yet() -> None:
    departures, found = Departures(), pod(containerStatuses=[])
    departures.kill(killing(), {uid(1): found}, 100.0, WALL)
    assert departure_of(look(departures, found, now=100.0), APP) is not None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(2), "another pod"),
        (pod(phase="Failed"), "a pod that has ended"),
        ({**pod(), "spec": {"containers": [{"name": "app"}]}}, "a pod without a GPU"),
        ({**pod(), "metadata": {**pod()["metadata"], "namespace": "victim"}}, "a pod of another namespace"),
        ({**pod(), "metadata": {**pod()["metadata"], "name": "other"}}, "a uid that is another pod's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whom_an_event_does_not_concern(found: Any, why: str) -> None:
    assert not Departures().kill(killing(), {uid(1): found}, 0.0, WALL), why


def test_a_container_of_a_pod_that_is_deleted_later_has_the_time_of_that() -> None:
    departures, deleted = Departures(), pod(grace=3600)
    departures.kill(killing(), {uid(1): pod()}, 100.0, WALL)
    look(departures, pod(), now=100.0)
    assert [item.kill_at for item in look(departures, deleted, now=101.0)] == [3701.0]


def test_an_eviction_shortens_the_time_of_a_deletion() -> None:
    departures, deleted = Departures(), pod(grace=3600)
    look(departures, pod(), now=100.0)
    assert departures.kill(killing(**EVICTED), {uid(1): deleted}, 200.0, WALL)
    departure = departure_of(look(departures, deleted, now=200.0), APP)
    assert departure is not None
    assert departure.kill_at == 201.0


def test_a_killed_container_is_forgotten_once_its_time_is_well_over() -> None:
    departures, found = Departures(), pod()
    departures.kill(killing(), {uid(1): found}, 100.0, WALL)
    assert look(departures, found, now=139.0)
    assert not look(departures, found, now=141.0)


def test_nobody_but_a_node_may_write_an_event_that_is_believed() -> None:
    policy = (REPOSITORY / "charts/gpushare/templates/policies/kubelet-events.yaml").read_text()
    assert [reason for reason in ("Killing", *PODS, *REJECTIONS) if f"'{reason}'" not in policy] == []
    assert f"startsWith('{LACK}')" in policy
