"""Which pods depart, until when, and what that means for their processes."""

from typing import Any

import pytest

from gpushare.agent.termination.departing import Departing, Departures, asks_for_gpu, decide, ending
from gpushare.agent.termination.departure import RESCAN_SECONDS, SLOW_RESCAN_SECONDS, pause
from tests.unit.agent.departing_pods import pod, uid

WALL = 1767225600.0
"""2026-01-01T00:00:00Z; the pods' grace of 30 s ends at 00:00:30."""


@pytest.mark.parametrize(
    ("now", "catches", "verdict"),
    [
        pytest.param(0.0, False, "terminate", id="what does not catch SIGTERM dies of it at any moment"),
        pytest.param(0.0, True, "wait", id="what catches SIGTERM may end itself"),
        pytest.param(27.9, True, "wait", id="until"),
        pytest.param(28.0, True, "terminate", id="2 s before the kubelet kills"),
        pytest.param(99.0, True, "terminate", id="and later"),
    ],
)
def test_a_client_of_a_pod_that_is_killed_at_30_s(now: float, catches: bool, verdict: str) -> None:
    assert decide(now, 30.0, catches) == verdict


@pytest.mark.parametrize(
    ("now", "kill_at", "seconds"),
    [
        pytest.param(1.0, 30.0, RESCAN_SECONDS, id="it has just begun"),
        pytest.param(10.0, 3600.0, SLOW_RESCAN_SECONDS, id="an hour of grace is not spent on looking"),
        pytest.param(3595.0, 3600.0, RESCAN_SECONDS, id="the end is near"),
        pytest.param(4000.0, 3600.0, SLOW_RESCAN_SECONDS, id="a process that will not die"),
    ],
)
def test_how_often_departing_clients_are_looked_at(now: float, kill_at: float, seconds: float) -> None:
    departing = {"uid": (Departing({}, kill_at, kill_at, "goes"),)}
    assert pause(departing, now) == seconds
    assert pause({}, now) is None


@pytest.mark.parametrize("grace", [0.0, 1.0, 2.0])
def test_with_next_to_no_grace_every_client_ends_at_once(grace: float) -> None:
    departing = look(Departures(), pod(grace=grace))
    assert decide(0.0, departing.kill_at, True) == "terminate"


@pytest.mark.parametrize(
    ("found", "grace"),
    [
        pytest.param(pod(), None, id="a running pod"),
        pytest.param(pod(grace=30), 30.0, id="deleted"),
        pytest.param(pod(grace=0), 0.0, id="deleted without grace"),
        pytest.param(pod(grace=30, phase="Failed"), None, id="deleted, but no container runs any more"),
        pytest.param(
            pod(phase="Failed", reason="Evicted"), None, id="evicted by the kubelet, which tells it afterwards"
        ),
    ],
)
def test_the_end_of_a_pod_as_it_is_seen(found: Any, grace: float | None) -> None:
    assert (ending(found) or (None,))[0] == grace


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({"containers": [{"name": "a"}]}, False),
        ({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, False),
        ({"containers": [{"resources": {"limits": {"gpushare.dev/x": "1"}}}]}, True),
        ({"containers": [], "initContainers": [{"resources": {"limits": {"gpushare.dev/x": "1"}}}]}, True),
        ({"containers": [{"name": "a"}], "resourceClaims": [{"name": "gpu"}]}, True),
    ],
    ids=["nothing", "another's GPU", "a slot", "a sidecar's slot", "a claim"],
)
def test_pods_that_hold_no_gpu_are_passed_over(spec: Any, asks: bool) -> None:
    assert asks_for_gpu({"spec": spec}) is asks


def test_grace_counts_from_when_the_deletion_was_seen_whatever_the_api_servers_clock_says() -> None:
    departures = Departures()
    look(departures, pod())
    assert look(departures, pod(grace=30), now=100.0, wall=WALL + 3600).kill_at == 130.0
    assert look(departures, pod(grace=30), now=120.0, wall=WALL + 3600).kill_at == 130.0


@pytest.mark.parametrize(
    ("wall", "kill_at"),
    [(WALL + 20, 110.0), (WALL + 300, 100.0), (WALL - 300, 130.0)],
    ids=["10 s left", "none left", "never more than the grace period"],
)
def test_a_pod_found_departing_after_a_restart_has_what_its_timestamp_leaves(wall: float, kill_at: float) -> None:
    assert look(Departures(), pod(grace=30), now=100.0, wall=wall).kill_at == kill_at


def test_a_second_deletion_with_less_grace_brings_the_end_nearer() -> None:
    departures = Departures()
    look(departures, pod())
    look(departures, pod(grace=600), now=100.0)
    assert look(departures, pod(grace=1), now=110.0).kill_at == 111.0


def test_a_second_deletion_never_puts_the_end_off() -> None:
    departures = Departures()
    look(departures, pod())
    look(departures, pod(grace=30), now=100.0)
    assert look(departures, pod(grace=29), now=125.0).kill_at == 130.0


def test_a_pod_deleted_by_force_departs_for_a_few_seconds() -> None:
    departures = Departures()
    look(departures, pod())
    [gone] = departures.look({}, 100.0, WALL)[uid(1)]
    assert gone.kill_at == 100.0
    assert departures.look({}, 109.0, WALL).keys() == {uid(1)}
    assert departures.look({}, 111.0, WALL) == {}


def test_a_pod_that_had_ended_before_it_went_is_no_departure() -> None:
    departures = Departures()
    look(departures, pod(phase="Succeeded"))
    assert departures.look({}, 100.0, WALL) == {}


def look(departures: Departures, found: Any, now: float = 0.0, wall: float = WALL) -> Any:
    """The departure of this one pod, if it departs."""
    departing = departures.look({found["metadata"]["uid"]: found}, now, wall)
    return next(iter(departing.get(found["metadata"]["uid"], ())), None)
