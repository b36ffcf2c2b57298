"""Which pods depart, until when, and what that means for their processes."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.agent.terminate.departures import DepartureTracker, deletion, is_due
from gpushare.agent.terminate.kubelet_kills import KubeletKill
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import StoppingContainer
from gpushare.process.procfs import Owner
from tests.unit.agent.departing_pods import CONTAINER, pod, uid

WALL = 1767225600.0
"""2026-01-01T00:00:00Z; the pods' grace of 30 s ends at 00:00:30."""


@pytest.mark.parametrize(
    ("now", "catches", "due"),
    [
        pytest.param(0.0, False, True, id="what does not catch SIGTERM dies of it at any moment"),
        pytest.param(0.0, True, False, id="what catches SIGTERM may end itself"),
        pytest.param(27.9, True, False, id="until"),
        pytest.param(28.0, True, True, id="2 s before the kubelet kills"),
        pytest.param(99.0, True, True, id="and later"),
    ],
)
def test_a_client_of_a_pod_that_is_killed_at_30_s(now: float, catches: bool, due: bool) -> None:
    assert is_due(now, 30.0, catches) is due


@pytest.mark.parametrize("grace", [0.0, 1.0, 2.0])
def test_with_next_to_no_grace_every_client_ends_at_once(grace: float) -> None:
    departure = update(DepartureTracker(), pod(grace=grace))
    assert is_due(0.0, departure.kill_at, True)


@pytest.mark.parametrize(
    ("given", "grace"),
    [
        pytest.param(pod(), None, id="a running pod"),
        pytest.param(pod(grace=30), 30.0, id="deleted"),
        pytest.param(pod(grace=0), 0.0, id="deleted without grace"),
        pytest.param(pod(grace=30, phase="Failed"), None, id="deleted, but no container runs any more"),
        pytest.param(
            pod(phase="Failed", reason="Evicted"), None, id="evicted by the kubelet, whose status comes afterwards"
        ),
    ],
)
def test_a_deletion_that_has_still_to_end_containers(given: Any, grace: float | None) -> None:
    assert (deletion(given) or (None,))[0] == grace


def test_grace_counts_from_the_sight_of_the_deletion_on_our_own_clock() -> None:
    tracker = DepartureTracker()
    update(tracker, pod())
    assert update(tracker, pod(grace=30), now=100.0, wall=WALL + 3600).kill_at == 130.0
    assert update(tracker, pod(grace=30), now=120.0, wall=WALL + 3600).kill_at == 130.0


@pytest.mark.parametrize(
    ("wall", "kill_at"),
    [(WALL + 20, 110.0), (WALL + 300, 100.0), (WALL - 300, 130.0)],
    ids=["10 s left", "none left", "never more than the grace period"],
)
def test_a_pod_departing_at_a_restart_has_what_its_timestamp_leaves(wall: float, kill_at: float) -> None:
    assert update(DepartureTracker(), pod(grace=30), now=100.0, wall=wall).kill_at == kill_at


def test_a_second_deletion_with_less_grace_brings_the_end_nearer() -> None:
    tracker = DepartureTracker()
    update(tracker, pod())
    update(tracker, pod(grace=600), now=100.0)
    assert update(tracker, pod(grace=1), now=110.0).kill_at == 111.0


def test_a_second_deletion_never_puts_the_end_off() -> None:
    tracker = DepartureTracker()
    update(tracker, pod())
    update(tracker, pod(grace=30), now=100.0)
    assert update(tracker, pod(grace=29), now=125.0).kill_at == 130.0


def test_a_pod_deleted_by_force_departs_for_a_few_seconds() -> None:
    tracker = DepartureTracker()
    update(tracker, pod())
    [gone] = tracker.update({}, 100.0, WALL)[uid(1)]
    assert gone.kill_at == 100.0
    assert tracker.update({}, 109.0, WALL).keys() == {uid(1)}
    assert tracker.update({}, 111.0, WALL) == {}


def test_a_pod_that_had_ended_before_it_went_is_no_departure() -> None:
    tracker = DepartureTracker()
    update(tracker, pod(phase="Succeeded"))
    assert tracker.update({}, 100.0, WALL) == {}


def update(tracker: DepartureTracker, given: Any, now: float = 0.0, wall: float = WALL) -> Any:
    """The departure of this one pod, if it departs."""
    departures = tracker.update({given["metadata"]["uid"]: given}, now, wall)
    return next(iter(departures.get(given["metadata"]["uid"], ())), None)


@pytest.mark.parametrize("when", ["33658-09-27T01:46:40Z", "soon"])
def test_a_deletion_whose_end_cannot_be_read_has_no_time_left(when: str) -> None:
    """An agent that has just started reads it; an error would end it, again and again."""
    (departure,) = DepartureTracker().update({uid(1): pod(1, grace=30, deleted_at=when)}, 100.0, 0.0)[uid(1)]
    assert departure.kill_at == 100.0


def ended_by_the_kubelet(pod_uid: str = uid(1)) -> KubeletKill:
    return KubeletKill(pod_uid, "team", "pod-1", "app", "Killing", "Stopping container app", WALL)


def stop(at: float) -> StoppingContainer:
    return StoppingContainer(pod_uid=uid(1), container="app", container_id=CONTAINER, at=at)


def with_probes(given: Any, grace: int, **own: int) -> Any:
    """A pod with `grace` whose probes have grace periods of their own."""
    given["spec"]["terminationGracePeriodSeconds"] = grace
    given["spec"]["containers"][0] |= {
        f"{probe}Probe": {"terminationGracePeriodSeconds": seconds} for probe, seconds in own.items()
    }
    return given


@pytest.mark.parametrize(
    ("own", "grace"),
    [
        pytest.param({}, 30.0, id="the pod's"),
        pytest.param({"liveness": 5}, 5.0, id="a probe's own, if it is shorter"),
        pytest.param({"liveness": 60, "startup": 9}, 9.0, id="the shortest of all"),
    ],
)
def test_a_stop_that_the_hook_tells_has_the_least_grace(own: dict[str, int], grace: float) -> None:
    """The hook does not know why it is run."""
    tracker, stopped = DepartureTracker(), with_probes(pod(), 30, **own)
    assert tracker.add_stop(stopped, stop(100.0), 100.5)
    departure = update(tracker, stopped, now=100.5)
    assert (departure.container, departure.container_id, departure.kill_at) == ("app", CONTAINER, 100.0 + grace)


def test_what_the_kubelet_says_of_a_stop_counts_more_than_its_hook() -> None:
    tracker, stopped = DepartureTracker(), with_probes(pod(), 30, liveness=5)
    tracker.add_stop(stopped, stop(100.0), 100.0)
    assert tracker.add_kill(ended_by_the_kubelet(), {uid(1): stopped}, 100.2, WALL)
    assert update(tracker, stopped, now=100.2).grace == 30.0
    assert not tracker.add_stop(stopped, stop(100.4), 100.4)


def test_a_deletion_counts_more_than_the_hook_that_it_runs() -> None:
    tracker, stopped = DepartureTracker(), with_probes(pod(), 600, liveness=5)
    update(tracker, stopped)
    tracker.add_stop(stopped, stop(100.0), 100.0)
    deleted = with_probes(pod(grace=600), 600, liveness=5)
    assert update(tracker, deleted, now=100.1).grace == 600.0
    assert not tracker.add_stop(deleted, stop(100.2), 100.2)


def test_a_container_that_says_so_without_end_departs_no_longer_than_once() -> None:
    """Who runs the program by itself loses its contexts, and cannot be departing for ever."""
    tracker, stopped = DepartureTracker(), with_probes(pod(), 5)
    tracker.add_stop(stopped, stop(100.0), 100.0)
    for at in range(101, 115):
        assert not tracker.add_stop(stopped, stop(float(at)), float(at))
    assert tracker.update({uid(1): stopped}, 116.0, WALL) == {}


def mirror(**fields: Any) -> Any:
    """The mirror in the API of a static pod, whose cgroups bear another uid."""
    mirrored = pod(1, **fields)
    mirrored["metadata"] |= {
        "annotations": {"kubernetes.io/config.mirror": STATIC},
        "ownerReferences": [{"kind": "Node", "controller": True}],
    }
    return mirrored


STATIC = "0123456789abcdef0123456789abcdef"


def test_a_static_pod_departs_by_the_uid_of_its_cgroups() -> None:
    tracker, pods = DepartureTracker(), pods_by_cgroup_uid([mirror()])
    assert tracker.add_kill(ended_by_the_kubelet(STATIC), pods, 100.0, WALL)  # type: ignore[arg-type]
    assert set(tracker.update(pods, 100.0, WALL)) == {STATIC}  # type: ignore[arg-type]


def test_the_deletion_of_a_mirror_ends_no_client_of_its_static_pod() -> None:
    """The kubelet makes the mirror again, and the static pod goes on."""
    tracker = DepartureTracker()
    for pods in ([mirror()], [mirror(grace=0)], []):
        assert tracker.update(pods_by_cgroup_uid(pods), 100.0, WALL) == {}  # type: ignore[arg-type]


def test_a_container_that_its_status_does_not_show_yet_departs_by_its_hook() -> None:
    """It may be stopped seconds after its start, before the kubelet has written its status."""
    tracker, starting = DepartureTracker(), pod(containerStatuses=[])
    assert tracker.add_stop(starting, stop(100.0), 100.0)
    departure = update(tracker, starting, now=100.0)
    assert departure.includes(Owner(uid(1), CONTAINER), 99.0)


def test_a_second_end_soon_after_the_first_is_another_without_a_status() -> None:
    tracker, starting = DepartureTracker(), with_probes(pod(containerStatuses=[]), 3)
    for at in (100.0, 110.0):
        kill = replace(ended_by_the_kubelet(), at=WALL + at)
        assert tracker.add_kill(kill, {uid(1): starting}, at, WALL + at)
    departure = update(tracker, starting, now=110.0)
    assert departure.includes(Owner(uid(1), CONTAINER), 108.0)
    beside = Owner(uid(1), CONTAINER, "beside")
    assert not departure.includes(beside, 108.0), "its mounts tell that it is another one, which goes on"
