"""What to do next about one GPU's daemon: an ordered chain of small pure functions, the first that applies decides.

Invariants
- Nothing that has clients is ever killed; an idle server that is no use is.
- Limits stand before a server starts, and the server before the link: no client comes in without them.
- Ready is only what was seen: an answering daemon, an ACTIVE server that NVML shows on the GPU, the wanted limits read
  back from daemon and server, and a link to the present socket.
- Winding up takes no new client first, waits for those that are there, and quits last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Limits
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation, Link

POLL_SECONDS = 2.0
SOON_SECONDS = 0.2
START_SECONDS = 60.0
"""So long after its start a daemon's silence is a slow start."""
WEDGED_SECONDS = 60.0
"""So long without an answer, and without a client by NVML, a server is taken for dead."""

PIDS_TOLD = 8


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
    """`pause`: seconds until the next look. `stopped`: the daemon has ended as asked."""

    reason: DaemonReason
    message: str = ""
    action: Action | None = None
    pause: float = POLL_SECONDS
    stopped: bool = False


Step = Callable[[DaemonObservation], Decision | None]


def decide(seen: DaemonObservation) -> Decision:
    for step in _WINDING_UP if seen.wanted is None else _SERVING:
        decision = step(seen)
        if decision is not None:
            return decision
    return Decision(DaemonReason.READY, seen.remark)


def _left_to_other(seen: DaemonObservation) -> Decision | None:
    if not seen.other_share:
        return None
    return Decision(DaemonReason.PENDING, f"the daemon of GpuShare {seen.other_share} still winds up on this GPU")


def _started(seen: DaemonObservation) -> Decision | None:
    if seen.daemon_pid is not None:
        return None
    why = f"the control daemon {seen.daemon_exit or 'does not run'}{_quoted(seen.log_line or seen.past.trouble)}"
    wait = seen.past.daemon_start_at - seen.now
    if wait > 0:
        message = f"{why}; it is started again in {wait:.0f} s"
        return Decision(DaemonReason.DAEMON_FAILED, message, pause=min(wait, POLL_SECONDS))
    reason = DaemonReason.DAEMON_FAILED if seen.daemon_exit else DaemonReason.STARTING
    return Decision(reason, why, Action.START_DAEMON, SOON_SECONDS)


def _answering(seen: DaemonObservation) -> Decision | None:
    if seen.answer is ControlAnswer.GIVEN:
        return None
    if seen.answer is ControlAnswer.FAILED:
        return Decision(DaemonReason.DAEMON_FAILED, seen.answer_error)
    if seen.now - seen.past.daemon_since < START_SECONDS and seen.wanted is not None and seen.past.server is None:
        return Decision(DaemonReason.STARTING, "the control daemon does not answer yet", pause=SOON_SECONDS)
    reason = DaemonReason.CONTROL_TIMEOUT if seen.answer is ControlAnswer.TIMED_OUT else DaemonReason.DAEMON_FAILED
    since = seen.now if seen.past.unanswered_since is None else seen.past.unanswered_since
    wedged = seen.now - since >= WEDGED_SECONDS
    if wedged and not seen.on_gpu.error and seen.on_gpu.mps_clients == 0:
        known = seen.past.server is not None and seen.answer is ControlAnswer.TIMED_OUT
        return Decision(reason, seen.answer_error, Action.KILL_SERVER if known else Action.KILL_DAEMON)
    return Decision(reason, seen.answer_error)


def _defaults_stand(seen: DaemonObservation) -> Decision | None:
    if seen.defaults_stand:
        return None
    return _write(seen, Action.WRITE_DEFAULTS, f"daemon shows {seen.past.defaults}", seen.past.defaults_written)


def _has_server(seen: DaemonObservation) -> Decision | None:
    if seen.server is not None:
        return None
    wait = seen.past.server_start_at - seen.now
    action, pause = (None, min(wait, POLL_SECONDS)) if wait > 0 else (Action.START_SERVER, SOON_SECONDS)
    if seen.on_gpu.foreign:
        holder = seen.on_gpu.foreign[0]
        message = f"PID {holder.pid} ({holder.command}) holds the GPU outside of MPS, so that no server starts: end it"
        return Decision(DaemonReason.GPU_HELD_BY_FOREIGN_PROCESS, message, action, pause)
    if seen.past.server_attempts < 2:
        return Decision(DaemonReason.STARTING, "an MPS server starts", action, pause)
    message = f"no MPS server starts{_quoted(seen.log_line or seen.past.trouble)}"
    return Decision(DaemonReason.SERVER_NOT_ACTIVE, message, action, pause)


def _active(seen: DaemonObservation) -> Decision | None:
    server = seen.server
    if server is None or server.status == "ACTIVE":
        return None
    message = f"server {server.pid} is {server.status}"
    if server.status == "INITIALIZING":
        return Decision(DaemonReason.STARTING, message, pause=SOON_SECONDS)
    if server.status == "FAULT":
        told = f"a fatal fault has taken the CUDA contexts of all clients; {message}{_quoted(seen.log_line)}"
        return _replace_idle(seen, DaemonReason.FAULTED, told)
    return _replace_idle(seen, DaemonReason.SERVER_NOT_ACTIVE, f"{message}{_quoted(seen.log_line)}")


def _holds_gpu(seen: DaemonObservation) -> Decision | None:
    if seen.on_gpu.error:
        return Decision(DaemonReason.SERVER_NOT_ACTIVE, f"NVML cannot tell whose the GPU is: {seen.on_gpu.error}")
    if seen.server is None or seen.server.pid in seen.on_gpu.pids:
        return None
    message = f"server {seen.server.pid} is ACTIVE, but NVML shows no context of it"
    return _replace_idle(seen, DaemonReason.SERVER_LET_GO, message)


def _server_limits_stand(seen: DaemonObservation) -> Decision | None:
    if seen.in_force is not None:
        return None
    shown, written = f"server shows {seen.past.server_limits}", seen.past.server_limits_written
    return _write(seen, Action.WRITE_SERVER_LIMITS, shown, written)


def _linked(seen: DaemonObservation) -> Decision | None:
    if seen.link is Link.CURRENT:
        return None
    message = "clients do not reach the daemon yet" + _quoted(seen.past.trouble)
    return Decision(DaemonReason.STARTING, message, Action.RENEW_LINK, POLL_SECONDS if seen.past.trouble else 0)


def _gone(seen: DaemonObservation) -> Decision | None:
    if seen.daemon_pid is not None:
        return None
    action = None if seen.other_share else Action.CLEAN_UP
    return Decision(DaemonReason.STOPPING, "the daemon has ended", action, stopped=True)


def _closed(seen: DaemonObservation) -> Decision | None:
    if seen.link is Link.ABSENT:
        return None
    return Decision(DaemonReason.STOPPING, "no new client is let in", Action.REMOVE_LINK, 0)


def _unused(seen: DaemonObservation) -> Decision | None:
    if seen.clients is None:
        return Decision(DaemonReason.STOPPING, "it is not known whether clients are left")
    if not seen.clients:
        return None
    return Decision(DaemonReason.STOPPING, f"waits for clients to end: PID {_told(seen.clients)}")


def _quit(seen: DaemonObservation) -> Decision | None:
    return Decision(DaemonReason.STOPPING, "the daemon quits" + _quoted(seen.past.trouble), Action.QUIT, SOON_SECONDS)


def _write(seen: DaemonObservation, action: Action, shown: str, written: Limits | None) -> Decision:
    """Write limits; at once the first time, then at the pace of the polls, told as a failure."""
    if written != seen.wanted:
        return Decision(DaemonReason.LIMITS_NOT_IN_FORCE, "limits are being written", action, 0)
    message = f"limits were written, but the {shown}{_quoted(seen.past.trouble)}"
    return Decision(DaemonReason.LIMITS_NOT_IN_FORCE, message, action, POLL_SECONDS)


def _replace_idle(seen: DaemonObservation, reason: DaemonReason, message: str) -> Decision:
    if seen.clients != ():
        whose = f": PID {_told(seen.clients)}" if seen.clients else ""
        return Decision(reason, f"{message}; its clients have to end before it is replaced{whose}")
    return Decision(reason, f"{message}; it is replaced", Action.KILL_SERVER, SOON_SECONDS)


def _told(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids[:PIDS_TOLD])) + (", …" if len(pids) > PIDS_TOLD else "")


def _quoted(line: str) -> str:
    return f": {line}" if line else ""


_SERVING: tuple[Step, ...] = (
    _left_to_other,
    _started,
    _answering,
    _defaults_stand,
    _has_server,
    _active,
    _holds_gpu,
    _server_limits_stand,
    _linked,
)
_WINDING_UP: tuple[Step, ...] = (_gone, _closed, _answering, _unused, _quit)
