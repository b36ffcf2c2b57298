"""Back-off of daemon and server, and what a new server does not inherit."""

from gpushare.api.gpunode import Limits
from gpushare.mps.supervisor.state import GOOD_SECONDS, Shown, SupervisorState

LIMITS = Limits(threads=50, memory_mib=16384)


def waits(lifetimes: list[float]) -> list[float]:
    past, now, found = SupervisorState(), 0.0, []
    for lifetime in lifetimes:
        past = past.daemon_runs(now)
        now += lifetime
        past = past.daemon_ended(now)
        found.append(past.daemon_start_at - now)
        now = past.daemon_start_at
    return found


def test_a_daemon_that_keeps_failing_is_started_ever_more_slowly_up_to_a_minute() -> None:
    assert waits([1.0] * 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_good_minute_forgives_all() -> None:
    assert waits([1, 1, 1, GOOD_SECONDS, 1]) == [0, 1, 2, 0, 1]


def test_a_server_that_does_not_start_is_asked_for_ever_more_slowly_until_one_is_seen() -> None:
    past, found = SupervisorState(), []
    for _ in range(8):
        past = past.server_attempted(100.0)
        found.append(past.server_start_at - 100.0)
    assert found == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert past.server_is(501).server_attempts == 0
    assert past.server_is(None).server_attempts == 8


def test_a_new_server_has_yet_to_show_its_limits() -> None:
    past = SupervisorState(server=501, server_limits=Shown(50.0, 16384), server_limits_written=LIMITS)
    assert past.server_is(501).server_limits is not None
    assert past.server_is(502).server_limits is None
    assert past.server_is(502).server_limits_written is None


def test_a_fault_counts_once_however_it_shows_until_the_server_stands_again_or_is_another() -> None:
    past = SupervisorState(server=501).server_stands("FAULT", True, (590,), 7.0).fault_told("faulted")
    past = past.server_stands("FAULT", True, (590,), 9.0).fault_told("faulted")
    past = past.server_stands("ACTIVE", False, (590, 600), 10.0)
    past = past.fault_told("it let go")
    assert (past.faults, past.last_fault, past.fault_since) == (1, "faulted", 7.0)
    assert past.faulted == (590,), "600 came later, and has lost nothing"
    again = past.server_stands("ACTIVE", True, None, 11.0)
    assert (again.fault_since, again.faulted) == (None, ())
    assert again.fault_told("once more").faults == 2
    assert past.server_is(502).fault_told("once more").faults == 2


def test_what_ended_a_daemon_or_server_outlasts_the_next_one() -> None:
    past = (
        SupervisorState(server=501)
        .server_lost("MPS server 501 ended")
        .daemon_ended(5.0, "the control daemon was ended by SIGKILL")
    )
    assert (past.servers_lost, past.last_failure) == (1, "the control daemon was ended by SIGKILL")


def test_a_new_daemon_has_yet_to_show_its_limits() -> None:
    past = SupervisorState(starts=3, defaults=Shown(50.0, 16384, 0), defaults_written=LIMITS, server=501).daemon_ended(
        5.0
    )
    assert (past.defaults, past.defaults_written, past.server) == (None, None, None)
    assert past.restarts == 2
