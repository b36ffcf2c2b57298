"""The next action for one GPU's daemon: an ordered chain of pure functions. The first that applies decides.

Invariants
- A daemon or server that has clients is never killed. An idle server that does not work is.
- Limits are in force before a server starts, and the server serves before the link exists: no client gets in without
  limits.
- READY needs evidence: a daemon that answers, an ACTIVE server that NVML shows on the GPU, the desired limits read back
  from daemon and server, and a link to the current socket.
- To stop, the supervisor first refuses new clients, then waits for the others, and then quits the daemon.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from gpushare.api.conditions import DaemonReason
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation, Link
from gpushare.mps.wire import DaemonLimits

POLL_SECONDS = 2.0
SOON_SECONDS = 0.2
START_SECONDS = 60.0
"""A daemon that is younger and does not answer is still starting."""
WEDGED_SECONDS = 60.0
"""A server counts as dead after so long without an answer and without a client in NVML's list."""

MAX_PIDS_IN_MESSAGE = 8


class Action(Enum):
    START_DAEMON = auto()
    KILL_DAEMON = auto()
    WRITE_DEFAULTS = auto()
    START_SERVER = auto()
    KILL_SERVER = auto()
    WRITE_SERVER_LIMITS = auto()
    RENEW_LINK = auto()
    REMOVE_LINK = auto()
    QUIT = auto()
    CLEAN_UP = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """`pause`: seconds until the next observation. `stopped`: the daemon has ended as requested."""

    reason: DaemonReason
    message: str = ""
    action: Action | None = None
    pause: float = POLL_SECONDS
    stopped: bool = False


Step = Callable[[DaemonObservation], Decision | None]


def decide(observed: DaemonObservation) -> Decision:
    for step in _STOPPING if observed.desired is None else _SERVING:
        decision = step(observed)
        if decision is not None:
            return decision
    return Decision(DaemonReason.READY, observed.remark)


def _used_by_other_share(observed: DaemonObservation) -> Decision | None:
    if not observed.other_share:
        return None
    return Decision(
        DaemonReason.PENDING, f"the daemon of GpuShare {observed.other_share} is still stopping on this GPU"
    )


def _started(observed: DaemonObservation) -> Decision | None:
    if observed.daemon_pid is not None:
        return None
    trouble = _quoted(observed.log_line or observed.state.trouble)
    why = f"the control daemon {observed.daemon_exit or 'does not run'}{trouble}"
    wait = observed.state.daemon_start_at - observed.now
    if wait > 0:
        message = f"{why}; it is started again in {wait:.0f} s"
        return Decision(DaemonReason.DAEMON_FAILED, message, pause=min(wait, POLL_SECONDS))
    reason = DaemonReason.DAEMON_FAILED if observed.daemon_exit else DaemonReason.STARTING
    return Decision(reason, why, Action.START_DAEMON, SOON_SECONDS)


def _answering(observed: DaemonObservation) -> Decision | None:
    if observed.answer is ControlAnswer.GIVEN:
        return None
    if observed.answer is ControlAnswer.FAILED:
        return Decision(DaemonReason.DAEMON_FAILED, observed.answer_error)
    young = observed.now - observed.state.daemon_since < START_SECONDS
    if young and observed.desired is not None and observed.state.server is None:
        return Decision(DaemonReason.STARTING, "the control daemon does not answer yet", pause=SOON_SECONDS)
    reason = DaemonReason.CONTROL_TIMEOUT if observed.answer is ControlAnswer.TIMED_OUT else DaemonReason.DAEMON_FAILED
    since = observed.now if observed.state.unanswered_since is None else observed.state.unanswered_since
    wedged = observed.now - since >= WEDGED_SECONDS
    if wedged and not observed.gpu_use.error and observed.gpu_use.mps_clients == 0:
        known = observed.state.server is not None and observed.answer is ControlAnswer.TIMED_OUT
        return Decision(reason, observed.answer_error, Action.KILL_SERVER if known else Action.KILL_DAEMON)
    return Decision(reason, observed.answer_error)


def _defaults_in_force(observed: DaemonObservation) -> Decision | None:
    if observed.defaults_in_force:
        return None
    return _write(
        observed, Action.WRITE_DEFAULTS, f"daemon shows {observed.state.defaults}", observed.state.defaults_written
    )


def _has_server(observed: DaemonObservation) -> Decision | None:
    if observed.server is not None:
        return None
    wait = observed.state.server_start_at - observed.now
    action, pause = (None, min(wait, POLL_SECONDS)) if wait > 0 else (Action.START_SERVER, SOON_SECONDS)
    if observed.gpu_use.non_mps:
        holder = observed.gpu_use.non_mps[0]
        message = f"PID {holder.pid} ({holder.command}) uses the GPU without MPS, so no MPS server can start: end it"
        return Decision(DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS, message, action, pause)
    if observed.state.server_attempts < 2:
        return Decision(DaemonReason.STARTING, "an MPS server starts", action, pause)
    message = f"no MPS server starts{_quoted(observed.log_line or observed.state.trouble)}"
    if observed.gpu_use.pids:  # they lost their contexts with their server, and hold an exclusive GPU until they end
        left = _listed(tuple(sorted(observed.gpu_use.pids)))
        message = f"clients of an MPS server that has ended are still on the GPU, end them: PID {left}; {message}"
    return Decision(DaemonReason.SERVER_NOT_ACTIVE, message, action, pause)


def _active(observed: DaemonObservation) -> Decision | None:
    server = observed.server
    if server is None or server.status == "ACTIVE":
        return None
    message = f"server {server.pid} is {server.status}"
    if server.status == "INITIALIZING":
        return Decision(DaemonReason.STARTING, message, pause=SOON_SECONDS)
    if server.status == "FAULT":
        fault = f"a fatal fault has taken the CUDA contexts of all clients; {message}{_quoted(observed.log_line)}"
        return _replace_idle(observed, DaemonReason.FAULTED, fault)
    return _replace_idle(observed, DaemonReason.SERVER_NOT_ACTIVE, f"{message}{_quoted(observed.log_line)}")


def _holds_gpu(observed: DaemonObservation) -> Decision | None:
    if observed.gpu_use.error:
        return Decision(
            DaemonReason.SERVER_NOT_ACTIVE, f"NVML cannot list the GPU's processes: {observed.gpu_use.error}"
        )
    if observed.server is None or observed.server.pid in observed.gpu_use.pids:
        return None
    message = f"server {observed.server.pid} is ACTIVE, but NVML shows no context of it"
    return _replace_idle(observed, DaemonReason.SERVER_CONTEXT_LOST, message)


def _server_limits_in_force(observed: DaemonObservation) -> Decision | None:
    if observed.in_force is not None:
        return None
    shown, written = f"server shows {observed.state.server_limits}", observed.state.server_limits_written
    return _write(observed, Action.WRITE_SERVER_LIMITS, shown, written)


def _linked(observed: DaemonObservation) -> Decision | None:
    if observed.link is Link.CURRENT:
        return None
    message = "clients cannot reach the daemon yet" + _quoted(observed.state.trouble)
    return Decision(DaemonReason.STARTING, message, Action.RENEW_LINK, POLL_SECONDS if observed.state.trouble else 0)


def _gone(observed: DaemonObservation) -> Decision | None:
    if observed.daemon_pid is not None:
        return None
    action = None if observed.other_share else Action.CLEAN_UP
    return Decision(DaemonReason.STOPPING, "the daemon has ended", action, stopped=True)


def _closed(observed: DaemonObservation) -> Decision | None:
    if observed.link is Link.ABSENT:
        return None
    return Decision(DaemonReason.STOPPING, "new clients are refused", Action.REMOVE_LINK, 0)


def _unused(observed: DaemonObservation) -> Decision | None:
    if observed.clients is None:
        return Decision(DaemonReason.STOPPING, "the daemon has not listed its clients yet")
    if not observed.clients:
        return None
    return Decision(DaemonReason.STOPPING, f"waiting for clients to end: PID {_listed(observed.clients)}")


def _quit(observed: DaemonObservation) -> Decision | None:
    return Decision(
        DaemonReason.STOPPING, "the daemon quits" + _quoted(observed.state.trouble), Action.QUIT, SOON_SECONDS
    )


def _write(observed: DaemonObservation, action: Action, shown: str, written: DaemonLimits | None) -> Decision:
    """Write limits: the first time at once, later once per poll, with the failure in the message."""
    if written != observed.desired:
        return Decision(DaemonReason.LIMITS_NOT_IN_FORCE, "limits are being written", action, 0)
    message = f"limits were written, but the {shown}{_quoted(observed.state.trouble)}"
    return Decision(DaemonReason.LIMITS_NOT_IN_FORCE, message, action, POLL_SECONDS)


def _replace_idle(observed: DaemonObservation, reason: DaemonReason, message: str) -> Decision:
    if observed.clients != ():
        whose = f": PID {_listed(observed.clients)}" if observed.clients else ""
        return Decision(reason, f"{message}; it is replaced once its clients have ended{whose}")
    return Decision(reason, f"{message}; it is replaced", Action.KILL_SERVER, SOON_SECONDS)


def _listed(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids[:MAX_PIDS_IN_MESSAGE])) + (", …" if len(pids) > MAX_PIDS_IN_MESSAGE else "")


def _quoted(line: str) -> str:
    return f": {line}" if line else ""


_SERVING: tuple[Step, ...] = (
    _used_by_other_share,
    _started,
    _answering,
    _defaults_in_force,
    _has_server,
    _active,
    _holds_gpu,
    _server_limits_in_force,
    _linked,
)
_STOPPING: tuple[Step, ...] = (_gone, _closed, _answering, _unused, _quit)
