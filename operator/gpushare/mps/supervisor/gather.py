"""Observes a GPU's daemon: reads the process table, the control daemon and NVML, and decides nothing.

Each run of the control program costs a process, so there are few: one for the servers in each observation; the limits
after a change and every `REREAD_SECONDS`; the clients only if a decision depends on them.
"""

import threading
from dataclasses import replace

from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlError, ControlProgram, ControlTimeoutError, DaemonControl, NoDaemonError
from gpushare.mps.control_v3 import ControlProgramV3
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.supervisor import client_link
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, command_name, is_mps
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation, GpuUse, Link, NonMpsProcess, Server
from gpushare.mps.supervisor.state import Shown, SupervisorState
from gpushare.mps.wire import AHEAD_SECONDS, DaemonLimits, DaemonState
from gpushare.nvml.types import GpuProcesses, Nvml, NvmlError

REREAD_SECONDS = 30.0
LIVING_SECONDS = 15.0
"""A supervisor with a younger heartbeat is alive."""
_HEALTHY = ("ACTIVE", "INITIALIZING")


class Gatherer:
    """Observes one GPU for the supervisor of `share`. `reread_seconds`: the longest time between readings of limits."""

    def __init__(
        self,
        gpu: GpuDir,
        share: str,
        process: DaemonProcess,
        v2: ControlProgram,
        v3: ControlProgramV3,
        nvml: Nvml,
        log: DaemonLog,
        server_limits: threading.Lock,
        reread_seconds: float = REREAD_SECONDS,
    ) -> None:
        """`v2`, `v3`: the daemon's control program, by its protocol. `server_limits`: held while the limits of the
        server are read: during a turn they are one client's.
        """
        self._gpu = gpu
        self._share = share
        self._process = process
        self._v2 = v2
        self._v3 = v3
        self._nvml = nvml
        self._log = log
        self._server_limits = server_limits
        self._reread_seconds = reread_seconds

    @property
    def control(self) -> DaemonControl:
        """The control of the daemon that runs, or of the latest one: by the protocol that it speaks."""
        return self._v3 if self._process.protocol is MpsProtocol.V3 else self._v2

    def observe(self, desired: DaemonLimits | None, state: SupervisorState, remark: str) -> DaemonObservation:
        """An observation with `state`, updated by this observation."""
        now, size = boot_clock(), self._log.size()
        observed = DaemonObservation(now, desired, state, self._other_share(now), remark=remark)
        observed = self._daemon(observed)
        if observed.daemon_pid is not None:
            observed = self._answered(observed)
        server = observed.server
        healthy = server is not None and server.status in _HEALTHY and server.pid in observed.gpu_use.pids
        if healthy:
            self._log.mark(size)
        return replace(observed, link=self._link(), log_line="" if healthy else self._log.last_relevant_line())

    def _daemon(self, observed: DaemonObservation) -> DaemonObservation:
        state = observed.state
        pid = self._process.pid
        if pid is None and not observed.other_share:
            pid = self._process.adopt()
        if pid is None and (state.daemon_ran or state.inherited):
            how = self._process.exit_status or ("ended with its container" if state.inherited else "has gone")
            state = state.daemon_ended(observed.now, self._with_log_line(f"the control daemon {how}"))
        if pid is not None and not state.daemon_ran:
            state = state.daemon_running(observed.now)
        exited, protocol = self._process.exit_status, self._process.protocol
        return replace(observed, state=state, daemon_pid=pid, daemon_exit=exited, protocol=protocol)

    def _answered(self, observed: DaemonObservation) -> DaemonObservation:
        """Asks the control daemon first and NVML second: a server that is ACTIVE now is on the GPU by then."""
        state, gpu_use, answer, error = observed.state, GpuUse(), ControlAnswer.GIVEN, ""
        server: Server | None = None
        clients: tuple[int, ...] | None = None
        contexts: dict[int, int] = {}
        try:
            server, contexts = self._server(state.server)
            if state.server is not None and (server is None or server.pid != state.server):
                state = state.server_lost(self._with_log_line(f"MPS server {state.server} ended"))
            state = replace(state.server_seen(server.pid if server else None), contexts=sum(contexts.values()))
            state = self._read_back(state, observed.now) if observed.desired else state
            gpu_use = self._gpu_use(server)
            if server is None:
                clients = ()
            elif observed.desired is None or server.status not in _HEALTHY or server.pid not in gpu_use.pids:
                clients = tuple(self.control.clients(server.pid))
            if self._process.protocol is MpsProtocol.V3 and (gpu_use.error or gpu_use.mps_clients):
                clients = clients or None  # of an unproven protocol an empty list is not enough: NVML has to agree
            if server is not None:
                state = state.server_observed(server.status, server.pid in gpu_use.pids, clients, observed.now)
        except ControlError as failure:
            answer, error, state = _kind(failure), str(failure), state.unanswered(observed.now)
            gpu_use = self._gpu_use(server)
        return replace(
            observed,
            state=state,
            answer=answer,
            answer_error=error,
            server=server,
            clients=clients,
            contexts=contexts,
            gpu_use=gpu_use,
        )

    def _server(self, last: int | None) -> tuple[Server | None, dict[int, int]]:
        """(the server, how many contexts each client has). Of several servers, which `-multiuser-server` does not make,
        the ACTIVE one.
        """
        statuses, contexts = self.control.survey(last)
        servers = [Server(pid, status) for pid, status in statuses.items()]
        serving = next((server for server in servers if server.status == "ACTIVE"), next(iter(servers), None))
        return serving, contexts

    def _with_log_line(self, ended: str) -> str:
        """`ended` with the relevant line of the daemon's log, if there is one."""
        line = self._log.last_relevant_line()
        return f"{ended}: {line}" if line else ended

    def _read_back(self, state: SupervisorState, now: float) -> SupervisorState:
        """Limits that were never written are not read: the next action writes them."""
        stale = now - state.read_at >= self._reread_seconds
        if state.defaults_written is not None and (state.defaults is None or stale):
            state = replace(state, defaults=Shown(*self._v2.default_limits()), read_at=now)
        unread = state.server_limits is None or stale
        if state.server is not None and state.server_limits_written is not None and unread:
            with self._server_limits:
                limits = Shown(*self.control.server_limits(state.server))
                state = replace(state, server_limits=limits, read_at=now)
        return state

    def _gpu_use(self, server: Server | None) -> GpuUse:
        try:
            processes = self._nvml.processes(self._gpu.uuid)
        except NvmlError as error:
            return GpuUse(error=str(error) or type(error).__name__)
        non_mps = (
            NonMpsProcess(process.pid, command_name(process.pid))
            for process in processes.compute
            if (server is None or process.pid != server.pid) and not is_mps(process.pid)
        )
        return GpuUse(_pids(processes), len(processes.mps_clients), tuple(non_mps))

    def _link(self) -> Link:
        if client_link.is_current(self._gpu):
            return Link.CURRENT
        return Link.STALE if client_link.exists(self._gpu) else Link.ABSENT

    def _other_share(self, now: float) -> str:
        state = read_model(self._gpu.state, DaemonState).value
        if state is None or state.share == self._share or state.stopped:
            return ""
        return state.share if -AHEAD_SECONDS <= now - state.heartbeat < LIVING_SECONDS else ""


def _pids(processes: GpuProcesses) -> frozenset[int]:
    return frozenset(process.pid for process in (*processes.compute, *processes.mps_clients))


def _kind(error: ControlError) -> ControlAnswer:
    match error:
        case ControlTimeoutError():
            return ControlAnswer.TIMED_OUT
        case NoDaemonError():
            return ControlAnswer.NO_DAEMON
        case _:
            return ControlAnswer.FAILED
