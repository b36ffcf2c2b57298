"""The decisions about a daemon, as a table: each row is a sentence, an observation, and the decision."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.conditions import DaemonReason as Reason
from gpushare.mps.supervisor.decision import POLL_SECONDS, START_SECONDS, WEDGED_SECONDS, Action, decide
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation, GpuUse, Link, NonMpsProcess, Server
from gpushare.mps.supervisor.state import Shown, SupervisorState
from gpushare.mps.wire import DaemonLimits

NOW = 10_000.0
WANTED = DaemonLimits(threads=50, memory_mib=16385)
STATE = SupervisorState(
    daemon_ran=True,
    starts=1,
    daemon_since=NOW - 1000,
    server=501,
    defaults=Shown(50.0, 16384),
    defaults_written=WANTED,
    server_limits=Shown(50.0, 16384),
    server_limits_written=WANTED,
)
HEALTHY = DaemonObservation(
    now=NOW,
    desired=WANTED,
    state=STATE,
    daemon_pid=405,
    server=Server(501, "ACTIVE"),
    gpu_use=GpuUse(frozenset({501, 590}), mps_clients=1),
    link=Link.CURRENT,
)
NOT_BY_MPS = GpuUse(frozenset({630}), non_mps=(NonMpsProcess(630, "python3"),))


def healthy(state: Mapping[str, object] | None = None, **changes: object) -> DaemonObservation:
    return replace(HEALTHY, state=replace(STATE, **(state or {})), **changes)  # type: ignore[arg-type]


def leaving(state: Mapping[str, object] | None = None, **changes: object) -> DaemonObservation:
    return healthy(state, **{"desired": None, "link": Link.ABSENT, "clients": (), **changes})


LONG_SILENT = {"unanswered_since": NOW - WEDGED_SECONDS}
SERVING = {
    "a daemon that is as desired is ready": (healthy(), Reason.READY, None),
    "the daemon of another share is left alone": (
        healthy(other_share="training", daemon_pid=None),
        Reason.PENDING,
        None,
    ),
    "a daemon that does not run is started": (healthy(daemon_pid=None), Reason.STARTING, Action.START_DAEMON),
    "a daemon that failed is started again after its back-off": (
        healthy({"daemon_start_at": NOW}, daemon_pid=None, daemon_exit="ended with status 1"),
        Reason.DAEMON_FAILED,
        Action.START_DAEMON,
    ),
    "and not earlier": (
        healthy({"daemon_start_at": NOW + 8}, daemon_pid=None, daemon_exit="ended with status 1"),
        Reason.DAEMON_FAILED,
        None,
    ),
    "a young daemon need not answer yet": (
        healthy({"daemon_since": NOW - START_SECONDS + 1, "server": None}, answer=ControlAnswer.NO_DAEMON),
        Reason.STARTING,
        None,
    ),
    "a daemon that hangs is reported": (healthy(answer=ControlAnswer.TIMED_OUT), Reason.CONTROL_TIMEOUT, None),
    "a daemon that hangs for long without clients loses its server": (
        healthy(LONG_SILENT, answer=ControlAnswer.TIMED_OUT, gpu_use=GpuUse()),
        Reason.CONTROL_TIMEOUT,
        Action.KILL_SERVER,
    ),
    "a daemon that hangs for long with clients keeps its server": (
        healthy(LONG_SILENT, answer=ControlAnswer.TIMED_OUT, gpu_use=GpuUse(mps_clients=1)),
        Reason.CONTROL_TIMEOUT,
        None,
    ),
    "a daemon that hangs keeps its server while NVML fails": (
        healthy(LONG_SILENT, answer=ControlAnswer.TIMED_OUT, gpu_use=GpuUse(error="Unknown Error")),
        Reason.CONTROL_TIMEOUT,
        None,
    ),
    "an idle daemon that lost its socket is killed": (
        healthy(LONG_SILENT, answer=ControlAnswer.NO_DAEMON, gpu_use=GpuUse()),
        Reason.DAEMON_FAILED,
        Action.KILL_DAEMON,
    ),
    "limits are written before a server starts": (
        healthy({"defaults": None, "defaults_written": None}, server=None),
        Reason.LIMITS_NOT_IN_FORCE,
        Action.WRITE_DEFAULTS,
    ),
    "a dropped memory limit is written again": (
        healthy({"defaults": Shown(50.0, None)}),
        Reason.LIMITS_NOT_IN_FORCE,
        Action.WRITE_DEFAULTS,
    ),
    "without a server one is started": (healthy(server=None), Reason.STARTING, Action.START_SERVER),
    "and only after its back-off the next time": (
        healthy({"server_attempts": 3, "server_start_at": NOW + 1}, server=None),
        Reason.SERVER_NOT_ACTIVE,
        None,
    ),
    "a process that holds the GPU without MPS is named": (
        healthy(server=None, gpu_use=NOT_BY_MPS),
        Reason.GPU_HELD_BY_FOREIGN_PROCESS,
        Action.START_SERVER,
    ),
    "a server may take its time to start": (
        healthy(server=Server(501, "INITIALIZING")),
        Reason.STARTING,
        None,
    ),
    "an idle server in FAULT is replaced": (
        healthy(server=Server(501, "FAULT"), clients=()),
        Reason.FAULTED,
        Action.KILL_SERVER,
    ),
    "a server in FAULT with clients is not": (
        healthy(server=Server(501, "FAULT"), clients=(590,)),
        Reason.FAULTED,
        None,
    ),
    "an idle server that let the GPU go is replaced": (
        healthy(gpu_use=GpuUse(), clients=()),
        Reason.SERVER_CONTEXT_LOST,
        Action.KILL_SERVER,
    ),
    "one with clients is not": (healthy(gpu_use=GpuUse(), clients=(590,)), Reason.SERVER_CONTEXT_LOST, None),
    "nor one whose clients are unknown": (healthy(gpu_use=GpuUse(), clients=None), Reason.SERVER_CONTEXT_LOST, None),
    "without NVML nothing is ready": (
        healthy(gpu_use=GpuUse(error="GPU is lost")),
        Reason.SERVER_NOT_ACTIVE,
        None,
    ),
    "a server that shows other limits gets the desired ones": (
        healthy({"server_limits": Shown(100.0, 16384)}),
        Reason.LIMITS_NOT_IN_FORCE,
        Action.WRITE_SERVER_LIMITS,
    ),
    "a link to an old socket is renewed": (healthy(link=Link.STALE), Reason.STARTING, Action.RENEW_LINK),
}
LEAVING = {
    "the link is removed first": (leaving(link=Link.CURRENT, clients=(590,)), Action.REMOVE_LINK),
    "a stale link too": (leaving(link=Link.STALE, answer=ControlAnswer.TIMED_OUT), Action.REMOVE_LINK),
    "clients are waited for": (leaving(clients=(590,)), None),
    "unknown clients are waited for": (leaving(clients=None), None),
    "an idle daemon quits": (leaving(), Action.QUIT),
    "the files of an ended daemon are removed": (leaving(daemon_pid=None), Action.CLEAN_UP),
    "but not if the GPU already belongs to another share": (leaving(daemon_pid=None, other_share="training"), None),
}


@pytest.mark.parametrize(("observed", "reason", "action"), SERVING.values(), ids=SERVING)
def test_serving(observed: DaemonObservation, reason: Reason, action: Action | None) -> None:
    decision = decide(observed)
    assert (decision.reason, decision.action) == (reason, action)
    assert not decision.stopped


@pytest.mark.parametrize(("observed", "action"), LEAVING.values(), ids=LEAVING)
def test_leaving(observed: DaemonObservation, action: Action | None) -> None:
    decision = decide(observed)
    assert (decision.reason, decision.action) == (Reason.STOPPING, action)
    assert decision.stopped == (observed.daemon_pid is None)


def test_messages_carry_what_a_person_needs() -> None:
    busy = "Failed to start : CUDA-capable device(s) is/are busy or unavailable"
    assert busy in decide(healthy({"server_attempts": 2}, server=None, log_line=busy)).message
    left = decide(healthy({"server_attempts": 2}, server=None, gpu_use=GpuUse(frozenset({812, 630}), 2), log_line=busy))
    assert left.message == (
        "clients of an MPS server that has ended are still on the GPU, end them: PID 630, 812; "
        f"no MPS server starts: {busy}"
    )
    assert "PID 630 (python3)" in decide(healthy(server=None, gpu_use=NOT_BY_MPS)).message
    failed = healthy({"daemon_start_at": NOW + 8}, daemon_pid=None, daemon_exit="ended with status 100")
    assert decide(failed).message == "the control daemon ended with status 100; it is started again in 8 s"
    assert decide(healthy(remark="NofileTooLow: …")).message == "NofileTooLow: …"
    assert "100 %, 16384 MiB" in decide(healthy({"server_limits": Shown(100.0, 16384)})).message


def test_limits_that_do_not_take_are_written_at_the_pace_of_the_polls() -> None:
    first = healthy({"defaults": Shown(100.0, None), "defaults_written": None})
    assert decide(first).pause == 0
    assert decide(replace(first, state=replace(first.state, defaults_written=WANTED))).pause == POLL_SECONDS


observations = st.builds(
    DaemonObservation,
    now=st.just(NOW),
    desired=st.sampled_from([WANTED, None]),
    state=st.builds(
        SupervisorState,
        daemon_since=st.sampled_from([NOW, NOW - 1000]),
        unanswered_since=st.sampled_from([None, NOW, NOW - 100]),
        server=st.sampled_from([None, 501]),
        defaults=st.sampled_from([None, Shown(50.0, 16384), Shown(100.0, None)]),
        defaults_written=st.sampled_from([None, WANTED]),
        server_limits=st.sampled_from([None, Shown(50.0, 16384), Shown(100.0, None)]),
    ),
    daemon_pid=st.sampled_from([None, 405]),
    answer=st.sampled_from(ControlAnswer),
    server=st.sampled_from([None, Server(501, "ACTIVE"), Server(501, "FAULT")]),
    clients=st.sampled_from([None, (), (590,)]),
    gpu_use=st.sampled_from([GpuUse(), NOT_BY_MPS, GpuUse(frozenset({501, 590}), 1), GpuUse(error="lost")]),
    link=st.sampled_from(Link),
)


@given(observations)
def test_no_daemon_with_clients_is_killed_and_ready_needs_evidence(observed: DaemonObservation) -> None:
    decision = decide(observed)
    if decision.action in (Action.KILL_SERVER, Action.KILL_DAEMON):
        assert (
            observed.gpu_use.mps_clients == 0 if observed.answer is not ControlAnswer.GIVEN else observed.clients == ()
        )
    if decision.action is Action.QUIT:
        assert observed.clients == ()
        assert observed.link is Link.ABSENT
    if decision.action is Action.RENEW_LINK:
        assert observed.in_force == observed.desired
    if decision.reason is Reason.READY:
        assert observed.server is not None
        assert observed.server.pid in observed.gpu_use.pids
        assert observed.in_force == observed.desired
        assert observed.link is Link.CURRENT
    assert decision.action is not None or decision.pause > 0, (
        "an observation that changes nothing may not be repeated at once"
    )
