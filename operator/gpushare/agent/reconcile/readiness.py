"""Whether one GPU's MPS daemon may serve clients: an ordered chain of checks, of which the first failure counts. Pure.

Guarantees: READY needs fresh heartbeats of supervisor and broker, and an NVML reading that was taken after the server
appeared and shows its context. ACTIVE alone proves nothing: after a fatal fault a server stays ACTIVE although it has
let the GPU go.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpushare.agent.gpus.view import GpuView
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.messages.wording import are, count_of
from gpushare.mps.wire import FRESH_SECONDS, BrokerState, DaemonState, DesiredDaemon, is_fresh


@dataclass(frozen=True, slots=True)
class ReadinessInput:
    """Everything that readiness depends on. `now` and times are CLOCK_BOOTTIME seconds of this boot."""

    wanted: DesiredDaemon
    state: DaemonState | None
    broker: BrokerState | None
    view: GpuView | None
    client_control: bool
    """Whether client/control exists."""
    server_since: float
    """When this agent first read the current server_pid."""
    now: float
    modes: ComputeModePolicy = ComputeModePolicy.MANAGE
    full: str = ""
    """The node's directory on which no file can be made any more; empty where one can."""

    @property
    def unwritten(self) -> str:
        """Why an old heartbeat does not mean that its writer is gone; empty where it does."""
        return f", since nothing can be written below {self.full}: it is full, read-only or fails" if self.full else ""


@dataclass(frozen=True, slots=True)
class Readiness:
    reason: DaemonReason
    message: str = ""

    @property
    def takes_clients(self) -> bool:
        """Whether a container may start on the GPU now."""
        return self.reason is DaemonReason.READY

    @property
    def ready(self) -> bool:
        """Whether it serves its clients: a full client table does not concern those that run."""
        return self.takes_clients or self.reason is DaemonReason.CLIENT_TABLE_FULL


def with_room(readiness: Readiness, contexts: int, ceiling: int, processes: int, free_slots: bool) -> Readiness:
    """CLIENT_TABLE_FULL instead of READY where a free slot could not be used.

    `contexts` of at most `ceiling` are taken in the server's client table; a client needs `processes`. `free_slots`:
    whether there is a slot to give.
    """
    if not readiness.takes_clients or not free_slots or contexts + processes <= ceiling:
        return readiness
    return Readiness(
        DaemonReason.CLIENT_TABLE_FULL,
        f"{contexts} of {count_of(ceiling, 'client context')} {are(contexts)} taken and a client may need {processes}: "
        "running clients go on, free slots are offered again once there is room",
    )


def readiness_of(evidence: ReadinessInput) -> Readiness:
    share, state, view = evidence.wanted.share, evidence.state, evidence.view
    if evidence.wanted.stop:
        return Readiness(DaemonReason.STOPPING, f"the GPU leaves GpuShare {share}; its daemon is asked to end")
    if view is None:
        return Readiness(DaemonReason.DAEMON_FAILED, "NVML does not show this GPU")
    if state is None or state.share != share or state.uuid != evidence.wanted.uuid:
        return Readiness(DaemonReason.PENDING, f"the MPS pod of GpuShare {share} has not taken this GPU yet")
    for check in _CHAIN:
        failure = check(evidence, state, view)
        if failure is not None:
            return failure
    return Readiness(DaemonReason.READY)


def _reachable(_: ReadinessInput, __: DaemonState, view: GpuView) -> Readiness | None:
    if view.lost:
        return Readiness(DaemonReason.GPU_LOST, "NVML no longer reaches the GPU: reset it or restart the node")
    return None


def _supervised(evidence: ReadinessInput, state: DaemonState, _: GpuView) -> Readiness | None:
    if not is_fresh(state.heartbeat, evidence.now):
        return Readiness(
            DaemonReason.SUPERVISOR_SILENT,
            f"the MPS pod of GpuShare {state.share} writes no state any more{evidence.unwritten}",
        )
    if state.stopped:
        return Readiness(
            DaemonReason.PENDING, f"the MPS pod of GpuShare {state.share} ended this daemon before it went"
        )
    return None


def _reported_ready(_: ReadinessInput, state: DaemonState, __: GpuView) -> Readiness | None:
    return None if state.ready else Readiness(state.reason, state.message)


def _exclusive(evidence: ReadinessInput, _: DaemonState, view: GpuView) -> Readiness | None:
    if evidence.modes is ComputeModePolicy.LEAVE or view.mode is ComputeMode.EXCLUSIVE_PROCESS:
        return None
    return Readiness(DaemonReason.STARTING, f"compute mode is {view.mode.value}, not yet ExclusiveProcess")


def _limits(evidence: ReadinessInput, state: DaemonState, _: GpuView) -> Readiness | None:
    wanted, in_force = evidence.wanted.limits, state.in_force
    if wanted == in_force:
        return None
    read = "nothing" if in_force is None else f"{in_force.threads} %, {in_force.memory_mib} MiB"
    return Readiness(
        DaemonReason.LIMITS_NOT_IN_FORCE,
        f"wanted {wanted.threads} %, {wanted.memory_mib} MiB; the daemon reads back {read}",
    )


def _seen_by_nvml(evidence: ReadinessInput, state: DaemonState, view: GpuView) -> Readiness | None:
    if state.server_pid is not None and state.server_pid in {process.pid for process in view.processes.compute}:
        stale = evidence.now - view.seen_at > FRESH_SECONDS
        return Readiness(DaemonReason.SERVER_NOT_ACTIVE, "NVML has stopped answering") if stale else None
    if view.seen_at < evidence.server_since:
        return Readiness(DaemonReason.STARTING, f"waiting for NVML to show server {state.server_pid}")
    return Readiness(DaemonReason.SERVER_CONTEXT_LOST, f"NVML shows no context of server {state.server_pid} on the GPU")


def _linked(evidence: ReadinessInput, _: DaemonState, __: GpuView) -> Readiness | None:
    return None if evidence.client_control else Readiness(DaemonReason.STARTING, "client/control is not there yet")


def _attachable(evidence: ReadinessInput, _: DaemonState, __: GpuView) -> Readiness | None:
    """A CUDA process finds nobody without its broker, and runs past MPS where the compute mode lets it (measured)."""
    broker = evidence.broker
    if broker is None:
        return Readiness(DaemonReason.STARTING, "the attach broker has not started yet")
    if broker.uuid != evidence.wanted.uuid:
        return Readiness(DaemonReason.BROKER_NOT_READY, "the attach broker's state is another GPU's")
    if not is_fresh(broker.heartbeat, evidence.now):
        message = f"the attach broker writes no state any more{evidence.unwritten}"
        return Readiness(DaemonReason.BROKER_NOT_READY, message)
    if broker.listening and not broker.problem:
        return None
    return Readiness(DaemonReason.BROKER_NOT_READY, broker.problem or "the attach broker does not listen yet")


_CHAIN: tuple[Callable[[ReadinessInput, DaemonState, GpuView], Readiness | None], ...] = (
    _reachable,
    _supervised,
    _reported_ready,
    _exclusive,
    _limits,
    _seen_by_nvml,
    _linked,
    _attachable,
)
