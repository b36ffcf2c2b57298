"""What is known of one GPU's daemon at one moment: plain values, from which `decision` decides."""

from dataclasses import dataclass, field
from enum import Enum, auto

from gpushare.api.gpunode import Limits
from gpushare.mps.supervisor.state import Shown, SupervisorState


class ControlAnswer(Enum):
    """How the control daemon answered."""

    GIVEN = auto()
    TIMED_OUT = auto()
    NO_DAEMON = auto()  # nothing listens, although the process may live
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
class Foreign:
    """A compute process on the GPU that is none of MPS."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class GpuContexts:
    """NVML's view. `error`: NVML could not be asked, and the rest says nothing."""

    pids: frozenset[int] = frozenset()
    mps_clients: int = 0
    foreign: tuple[Foreign, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class DaemonObservation:
    """One look. `now` and other times are CLOCK_BOOTTIME seconds.

    `wanted` None: the daemon is to end. `other_share`: the share whose living supervisor still has a daemon here.
    `clients` None: not asked, since nothing depends on it. `remark`: to be told of a daemon that is ready.
    """

    now: float
    wanted: Limits | None
    past: SupervisorState = field(default_factory=SupervisorState)
    other_share: str = ""
    daemon_pid: int | None = None
    daemon_exit: str = ""
    answer: ControlAnswer = ControlAnswer.GIVEN
    answer_error: str = ""
    server: Server | None = None
    clients: tuple[int, ...] | None = None
    contexts: int = 0
    on_gpu: GpuContexts = field(default_factory=GpuContexts)
    link: Link = Link.ABSENT
    log_line: str = ""
    remark: str = ""

    @property
    def defaults_stand(self) -> bool:
        return _agrees(self.past.defaults, self.wanted)

    @property
    def in_force(self) -> Limits | None:
        """The limits proven by reading back: those wanted, or None as long as daemon or server shows others."""
        return self.wanted if self.defaults_stand and _agrees(self.past.server_limits, self.wanted) else None


def _agrees(shown: Shown | None, wanted: Limits | None) -> bool:
    return shown is not None and wanted is not None and shown.agrees(wanted)
