"""Which pods depart, until when, and what that means for their processes."""

from typing import Any

import pytest

from gpushare.agent.terminate.departures import DepartureTracker, deletion, is_due
from tests.unit.agent.departing_pods import pod, uid

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
    ("found", "grace"),
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
def test_a_deletion_that_has_still_to_end_containers(found: Any, grace: float | None) -> None:
    assert (deletion(found) or (None,))[0] == grace


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


def update(tracker: DepartureTracker, found: Any, now: float = 0.0, wall: float = WALL) -> Any:
    """The departure of this one pod, if it departs."""
    departures = tracker.update({found["metadata"]["uid"]: found}, now, wall)
    return next(iter(departures.get(found["metadata"]["uid"], ())), None)


@pytest.mark.parametrize("when", ["33658-09-27T01:46:40Z", "soon"])
def test_a_deletion_whose_end_cannot_be_read_has_no_time_left(when: str) -> None:
    """An agent that has just started reads it; an error would end it, again and again."""
    (departure,) = DepartureTracker().update({uid(1): pod(1, grace=30, deleted_at=when)}, 100.0, 0.0)[uid(1)]
    assert departure.kill_at == 100.0
