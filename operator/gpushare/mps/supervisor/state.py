"""The state of one GPU's supervisor from observation to observation, with its two back-offs. Pure."""

from dataclasses import dataclass, replace

from gpushare.api.conditions import DaemonReason
from gpushare.mps.control import shown_mib
from gpushare.mps.wire import DaemonLimits, DaemonState

LONGEST_BACKOFF_SECONDS = 60.0
GOOD_SECONDS = 60.0
"""A daemon that ran so long started well: its end begins a new count of failures."""
FIRST_SERVER_WAIT_SECONDS = 0.5
LONGEST_SERVER_WAIT_SECONDS = 30.0
_MOST_DOUBLINGS = 10
FAULT_REASONS = (DaemonReason.FAULTED, DaemonReason.SERVER_CONTEXT_LOST)


@dataclass(frozen=True, slots=True)
class Shown:
    """Limits as daemon or server show them: percent, MiB (floored, see `shown_mib`; None: no limit)."""

    threads: float
    memory_mib: int | None

    def agrees(self, desired: DaemonLimits) -> bool:
        return self.threads == desired.threads and self.memory_mib in (
            shown_mib(desired.memory_mib),
            desired.memory_mib,
        )

    def __str__(self) -> str:
        memory = "no memory limit" if self.memory_mib is None else f"{self.memory_mib} MiB"
        return f"{self.threads:g} %, {memory}"


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """Times are CLOCK_BOOTTIME seconds. Limits read back count for one daemon and one server.

    `daemon_ran`: in the last observation. `inherited`: an earlier supervisor had a daemon, which is yet to be
    looked for. `…_written`: the limits written last. `trouble`: the last action's error. `last_failure`: how daemon or
    server ended last. `contexts`: of clients, in the last survey; `lost_contexts`: of all that ended so.
    `fault_since`: when the current server was first observed in FAULT; `faulted`: PIDs of the clients that it listed
    then, which have lost their contexts.
    """

    daemon_ran: bool = False
    inherited: bool = False
    starts: int = 0
    failures: int = 0
    daemon_since: float = 0.0
    daemon_start_at: float = 0.0
    unanswered_since: float | None = None
    server: int | None = None
    server_attempts: int = 0
    server_start_at: float = 0.0
    defaults: Shown | None = None
    defaults_written: DaemonLimits | None = None
    server_limits: Shown | None = None
    server_limits_written: DaemonLimits | None = None
    read_at: float = 0.0
    trouble: str = ""
    servers_lost: int = 0
    last_failure: str = ""
    contexts: int = 0
    lost_contexts: int = 0
    faults: int = 0
    last_fault: str = ""
    fault_counted: bool = False
    fault_since: float | None = None
    faulted: tuple[int, ...] = ()

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def daemon_running(self, now: float) -> "SupervisorState":
        """A daemon was started or adopted."""
        return replace(self, daemon_ran=True, inherited=False, daemon_since=now)

    def daemon_ended(self, now: float, how: str = "") -> "SupervisorState":
        """The next start is 0, 1, 2, 4, … 60 s later. A daemon that ran for GOOD_SECONDS resets the count."""
        failures = 1 if self.daemon_ran and now - self.daemon_since >= GOOD_SECONDS else self.failures + 1
        wait = min(2.0 ** min(failures - 2, _MOST_DOUBLINGS), LONGEST_BACKOFF_SECONDS) if failures > 1 else 0.0
        return SupervisorState(
            starts=self.starts,
            failures=failures,
            daemon_start_at=now + wait,
            trouble=self.trouble,
            servers_lost=self.servers_lost,
            faults=self.faults,
            last_fault=self.last_fault,
            last_failure=how or self.last_failure,
            lost_contexts=self.lost_contexts + self.contexts,
        )

    def unanswered(self, now: float) -> "SupervisorState":
        return self if self.unanswered_since is not None else replace(self, unanswered_since=now)

    def server_seen(self, pid: int | None) -> "SupervisorState":
        """The server in this observation. The limits of a new server are unknown."""
        state = replace(self, server=pid, unanswered_since=None)
        if pid != self.server:
            state = replace(state, server_limits=None, server_limits_written=None)
            state = state._without_fault()
        return state if pid is None else replace(state, server_attempts=0, server_start_at=0.0)

    def server_lost(self, how: str) -> "SupervisorState":
        """The server ended, and the supervisor had not ended it."""
        lost = self.lost_contexts + self.contexts
        return replace(self, servers_lost=self.servers_lost + 1, last_failure=how, lost_contexts=lost, contexts=0)

    def server_observed(
        self, status: str, holds_gpu: bool, clients: tuple[int, ...] | None, now: float
    ) -> "SupervisorState":
        """A fault begins with the status FAULT, and is over once the server is ACTIVE and on the GPU again."""
        if status == "FAULT":
            since = now if self.fault_since is None else self.fault_since
            return replace(self, fault_since=since, faulted=self.faulted if clients is None else clients)
        return self._without_fault() if status == "ACTIVE" and holds_gpu else self

    def _without_fault(self) -> "SupervisorState":
        return replace(self, fault_since=None, fault_counted=False, faulted=())

    def with_fault(self, message: str) -> "SupervisorState":
        """Counts a fault once: it may show as FAULT, as a server that let the GPU go, or as one after the other."""
        if self.fault_counted:
            return self
        return replace(self, faults=self.faults + 1, last_fault=message, fault_counted=True)

    def server_start_requested(self, now: float) -> "SupervisorState":
        wait = FIRST_SERVER_WAIT_SECONDS * 2.0 ** min(self.server_attempts, _MOST_DOUBLINGS)
        start_at = now + min(wait, LONGEST_SERVER_WAIT_SECONDS)
        return replace(self, server_attempts=self.server_attempts + 1, server_start_at=start_at)


def inherited(before: DaemonState | None, share: str) -> SupervisorState:
    """What a supervisor of `share` begins with. `before`: the GPU's last state.json.

    A supervisor that was killed, as with its whole container, is counted on from: so the end of its daemon is reported
    like any other, once. A daemon that was asked to end and had no client left is no failure, whoever ended it.
    """
    if before is None or before.share != share or before.stopped:
        return SupervisorState()
    if before.reason is DaemonReason.STOPPING and not before.contexts:
        return SupervisorState()
    ran = before.control_pid is not None
    return SupervisorState(
        inherited=ran,
        starts=before.restarts + (1 if ran or before.restarts or before.last_failure else 0),
        server=before.server_pid,
        servers_lost=before.servers_lost,
        last_failure=before.last_failure,
        contexts=before.contexts,
        lost_contexts=before.lost_contexts,
        faults=before.faults,
        last_fault=before.last_fault,
        fault_counted=before.reason in FAULT_REASONS,
        fault_since=before.fault_since,
        faulted=tuple(before.faulted_clients),
    )
