"""The back-offs of daemon and server, faults, and the values that a new server does not inherit."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.conditions import DaemonReason
from gpushare.mps.supervisor.state import GOOD_SECONDS, Shown, SupervisorState, inherited
from gpushare.mps.wire import DaemonLimits, DaemonState

LIMITS = DaemonLimits(threads=50, memory_mib=16384)


def waits(lifetimes: list[float]) -> list[float]:
    state, now, pauses = SupervisorState(), 0.0, []
    for lifetime in lifetimes:
        state = state.daemon_running(now)
        now += lifetime
        state = state.daemon_ended(now)
        pauses.append(state.daemon_start_at - now)
        now = state.daemon_start_at
    return pauses


def test_a_failing_daemon_is_started_with_back_off() -> None:
    assert waits([1.0] * 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_daemon_that_ran_for_a_minute_resets_the_back_off() -> None:
    assert waits([1, 1, 1, GOOD_SECONDS, 1]) == [0, 1, 2, 0, 1]


def test_a_server_that_does_not_start_is_asked_for_with_back_off() -> None:
    state, pauses = SupervisorState(), []
    for _ in range(8):
        state = state.server_start_requested(100.0)
        pauses.append(state.server_start_at - 100.0)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert state.server_seen(501).server_attempts == 0
    assert state.server_seen(None).server_attempts == 8


def test_the_limits_of_a_new_server_are_unknown() -> None:
    state = SupervisorState(server=501, server_limits=Shown(50.0, 16384), server_limits_written=LIMITS)
    assert state.server_seen(501).server_limits is not None
    assert state.server_seen(502).server_limits is None
    assert state.server_seen(502).server_limits_written is None


def test_a_fault_counts_once_for_each_server() -> None:
    state = SupervisorState(server=501).server_observed("FAULT", True, (590,), 7.0).with_fault("faulted")
    state = state.server_observed("FAULT", True, (590,), 9.0).with_fault("faulted")
    state = state.server_observed("ACTIVE", False, (590, 600), 10.0)
    state = state.with_fault("it let go")
    assert (state.faults, state.last_fault, state.fault_since) == (1, "faulted", 7.0)
    assert state.faulted == (590,), "600 came later, and has lost nothing"
    again = state.server_observed("ACTIVE", True, None, 11.0)
    assert (again.fault_since, again.faulted) == (None, ())
    assert again.with_fault("once more").faults == 2
    assert state.server_seen(502).with_fault("once more").faults == 2


def test_the_last_failure_is_kept_beyond_the_next_start() -> None:
    state = (
        SupervisorState(server=501)
        .server_lost("MPS server 501 ended")
        .daemon_ended(5.0, "the control daemon was ended by SIGKILL")
    )
    assert (state.servers_lost, state.last_failure) == (1, "the control daemon was ended by SIGKILL")


def test_the_limits_of_a_new_daemon_are_unknown() -> None:
    state = SupervisorState(starts=3, defaults=Shown(50.0, 16384), defaults_written=LIMITS, server=501).daemon_ended(
        5.0
    )
    assert (state.defaults, state.defaults_written, state.server) == (None, None, None)
    assert state.restarts == 2


def before(**values: Any) -> DaemonState:
    """The state of a daemon that serves two clients."""
    usual: dict[str, Any] = {"reason": DaemonReason.READY, "control_pid": 500, "server_pid": 501, "contexts": 2}
    return DaemonState(**{"uuid": "GPU-0", "share": "inference", "heartbeat": 1.0, **usual, **values})


@pytest.mark.parametrize(
    ("state", "restarts"),
    [
        pytest.param(None, 0, id="a GPU's first supervisor"),
        pytest.param(before(), 1, id="a daemon that ended with its supervisor"),
        pytest.param(before(restarts=3), 4, id="one that had been started again before"),
        pytest.param(before(restarts=3, share="training"), 0, id="another share's"),
        pytest.param(before(restarts=3, stopped=True), 0, id="one that had stopped as asked"),
        pytest.param(before(restarts=3, reason=DaemonReason.STOPPING, contexts=0), 0, id="one that was about to stop"),
        pytest.param(before(reason=DaemonReason.STOPPING), 1, id="one that still waited for its clients"),
        pytest.param(before(control_pid=None, server_pid=None), 0, id="one that was never started"),
        pytest.param(
            before(control_pid=None, server_pid=None, last_failure="it ended"), 1, id="one that was to be started again"
        ),
    ],
)
def test_a_supervisor_that_was_killed_is_counted_on_from(state: DaemonState | None, restarts: int) -> None:
    mine = inherited(state, "inference")
    if mine.inherited:
        mine = mine.daemon_ended(9.0, "it ended with its container")
        assert mine.lost_contexts == 2
    started = SupervisorState.daemon_running(replace(mine, starts=mine.starts + 1), 9.0)
    assert (started.restarts, started.inherited) == (restarts, False)


def test_a_fault_counted_by_the_last_supervisor_counts_once() -> None:
    faulted = before(reason=DaemonReason.FAULTED, faults=1, fault_since=7.0, faulted_clients=[590])
    state = inherited(faulted, "inference").daemon_running(9.0)
    assert state.server_observed("FAULT", True, (590,), 9.0).with_fault("again").faults == 1
    assert (state.fault_since, state.faulted) == (7.0, (590,))
    assert state.server_seen(502).with_fault("of another server").faults == 2


def test_contexts_that_end_with_a_server_are_kept_for_its_event() -> None:
    state = SupervisorState(server=501, contexts=2, lost_contexts=1).server_lost("MPS server 501 ended")
    assert (state.lost_contexts, state.contexts) == (3, 0)
    state = replace(state, contexts=4).daemon_ended(9.0, "it ended")
    assert (state.lost_contexts, state.contexts) == (7, 0)
