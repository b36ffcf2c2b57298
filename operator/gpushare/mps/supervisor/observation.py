"""An observation of one GPU's daemon: plain values, the input of `decision`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.supervisor.state import Shown, SupervisorState
from gpushare.mps.wire import DaemonLimits


class ControlAnswer(Enum):
    """How the control daemon answered."""

    GIVEN = auto()
    TIMED_OUT = auto()
    NO_DAEMON = auto()  # nobody listens, although the process may live
    FAILED = auto()  # the control program itself failed


class Link(Enum):
    """client/control against pipe/control."""

    ABSENT = auto()
    STALE = auto()
    CURRENT = auto()


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    status: str


@dataclass(frozen=True, slots=True)
class NonMpsProcess:
    """A compute process on the GPU that belongs to no MPS daemon."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The processes that NVML lists. With an `error` of NVML the other fields mean nothing."""

    pids: frozenset[int] = frozenset()
    mps_clients: int = 0
    non_mps: tuple[NonMpsProcess, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class DaemonObservation:
    """One observation. `now` and other times are CLOCK_BOOTTIME seconds.

    `desired` None: the daemon has to end. `other_share`: the share whose living supervisor still has a daemon here.
    `clients`: PIDs; None if not asked, because no decision depends on them. `contexts`: how many each client of the
    server has, by PID.
    `log_line`: the relevant line of the daemon's log. `remark`: the message of a daemon that is ready.
    """

    now: float
    desired: DaemonLimits | None
    state: SupervisorState = field(default_factory=SupervisorState)
    other_share: str = ""
    daemon_pid: int | None = None
    daemon_exit: str = ""
    answer: ControlAnswer = ControlAnswer.GIVEN
    answer_error: str = ""
    server: Server | None = None
    clients: tuple[int, ...] | None = None
    contexts: Mapping[int, int] = field(default_factory=dict)
    gpu_use: GpuUse = field(default_factory=GpuUse)
    link: Link = Link.ABSENT
    log_line: str = ""
    remark: str = ""
    protocol: MpsProtocol = MpsProtocol.V2

    @property
    def defaults_in_force(self) -> bool:
        """A daemon of protocol v3 has none: each namespace has its own limits."""
        if self.protocol is MpsProtocol.V3:
            return self.daemon_pid is not None
        return _agrees(self.state.defaults, self.desired)

    @property
    def in_force(self) -> DaemonLimits | None:
        """The desired limits once daemon and server show them; None as long as one of them shows others."""
        return self.desired if self.defaults_in_force and _agrees(self.state.server_limits, self.desired) else None


def _agrees(shown: Shown | None, desired: DaemonLimits | None) -> bool:
    return shown is not None and desired is not None and shown.agrees(desired)
