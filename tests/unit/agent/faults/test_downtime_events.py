"""What happened to a GPU while no agent ran: what its successor reports, and what it does not."""

from typing import Any

import pytest

from gpushare.agent.faults.downtime import MAX_PODS_NAMED, LastSeen, SeenClient, downtime_events
from gpushare.api.conditions import DaemonReason, EventReason
from gpushare.mps.wire import DaemonState
from tests.unit.agent.departing_pods import pod, uid

GPU = "GPU-0"
BEFORE, NOW = 1767225600.0, 1767225634.0
WHEN = "It happened while no agent ran, between 2026-01-01T00:00:00Z and 2026-01-01T00:00:34Z"


def client(number: int) -> SeenClient:
    return SeenClient(pid=100 + number, started=7, pod_uid=uid(number), namespace="team", pod=f"pod-{number}")


def state(**counts: Any) -> DaemonState:
    return DaemonState(uuid=GPU, share="inference", heartbeat=0.0, reason=DaemonReason.READY, **counts)


def events(before: LastSeen, after: DaemonState, ended: tuple[SeenClient, ...] = (), *pods: Any) -> list[Any]:
    return list(downtime_events("here", GPU, before, after, ended, {pod["metadata"]["uid"]: pod for pod in pods}, NOW))


def test_where_nothing_happened_nothing_is_reported() -> None:
    before = LastSeen(at=BEFORE, restarts=2, servers_lost=1, faults=3, clients=(client(1),))
    assert events(before, state(restarts=2, servers_lost=1, faults=3), (), pod(1)) == []


def test_a_fault_is_reported_with_the_clients_of_before() -> None:
    before = LastSeen(at=BEFORE, faults=1, clients=(client(1), client(2)))
    [event] = events(before, state(faults=2, last_fault="server 501 is FAULT"), (), pod(1), pod(2))
    assert (event.reason, event.type, event.regarding["name"]) == (EventReason.GPU_FAULT, "Warning", "here")
    assert event.note == (
        f"GPU {GPU}: server 501 is FAULT. {WHEN}. Clients before that were those of team/pod-1, team/pod-2."
    )


@pytest.mark.parametrize("count", ["restarts", "servers_lost"])
def test_a_lost_daemon_or_server_is_reported(count: str) -> None:
    before = LastSeen(at=BEFORE, lost_contexts=3, clients=(client(1), client(2)))
    [event] = events(before, state(**{count: 1}, last_failure="MPS server 501 ended", lost_contexts=5))
    assert event.reason is EventReason.DAEMON_RESTARTED
    assert event.note == (
        f"GPU {GPU}: MPS server 501 ended; its clients, 2 CUDA contexts, got error 806. {WHEN}. "
        "Clients before that were those of team/pod-1, team/pod-2."
    )


@pytest.mark.parametrize(("after", "reasons"), [(0, []), (1, [EventReason.GPU_FAULT])])
def test_a_supervisor_that_counts_from_0_again_has_counted_what_it_shows(after: int, reasons: list[str]) -> None:
    assert [event.reason for event in events(LastSeen(at=BEFORE, faults=3), state(faults=after))] == reasons


def test_unguarded_departures_are_reported_with_the_servers_faults() -> None:
    ended = (client(1), client(2), client(3))
    before = LastSeen(at=BEFORE, clients=(*ended, client(4)))
    pods = (pod(2, grace=30), pod(3, phase="Succeeded"), pod(4))
    [event] = events(before, state(), ended, *pods)
    assert (event.reason, event.type) == (EventReason.UNGUARDED_DEPARTURE, "Normal")
    assert event.note == (
        f"GPU {GPU}: clients of deleted pods ended without being terminated in order: team/pod-1, team/pod-2. "
        f"{WHEN}; the MPS server has met no fault since."
    )
    fault, event = events(before, state(faults=1, last_fault="FAULT"), ended, *pods)
    assert fault.reason is EventReason.GPU_FAULT
    assert (event.type, "the MPS server has met a fatal fault since" in event.note) == ("Warning", True)


def test_a_client_that_ended_in_a_pod_that_stays_is_not_reported() -> None:
    assert events(LastSeen(at=BEFORE, clients=(client(1),)), state(), (client(1),), pod(1)) == []


def test_of_many_pods_some_are_named() -> None:
    ended = tuple(client(number) for number in range(MAX_PODS_NAMED + 3))
    [event] = events(LastSeen(at=BEFORE, clients=ended), state(), ended)
    assert "and 3 more" in event.note
