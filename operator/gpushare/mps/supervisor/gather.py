"""One look at a GPU's daemon: asks the process table, the control daemon and NVML, and decides nothing.

As few runs of the control program as will do, since each costs a process: one for the servers at every look; the limits
are read back after changes and every `REREAD_SECONDS`; clients are asked for only where something depends on them.
"""

from dataclasses import replace

from gpushare.api.gpunode import Limits
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlError, ControlProgram, ControlTimeoutError, NoDaemonError
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor import client_link
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, command_name, is_mps
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation, Foreign, GpuContexts, Link, Server
from gpushare.mps.supervisor.state import Shown, SupervisorState
from gpushare.mps.wire import DaemonState
from gpushare.nvml.types import GpuProcesses, Nvml, NvmlError

REREAD_SECONDS = 30.0
LIVING_SECONDS = 15.0
"""A supervisor whose last heartbeat is younger is alive."""
_HEALTHY = ("ACTIVE", "INITIALIZING")


class Gatherer:
    """Of one GPU, for the supervisor of `share`."""

    def __init__(
        self, gpu: GpuDir, share: str, process: DaemonProcess, control: ControlProgram, nvml: Nvml, log: DaemonLog
    ) -> None:
        self._gpu = gpu
        self._share = share
        self._process = process
        self._control = control
        self._nvml = nvml
        self._log = log

    def look(self, wanted: Limits | None, past: SupervisorState, remark: str) -> DaemonObservation:
        """The observation carries the past on, with what this look added to it."""
        now, size = boot_clock(), self._log.size()
        seen = DaemonObservation(now, wanted, past, self._other_share(now), remark=remark)
        seen = self._daemon(seen)
        if seen.daemon_pid is not None:
            seen = self._answered(seen)
        healthy = seen.server is not None and seen.server.status in _HEALTHY and seen.server.pid in seen.on_gpu.pids
        if healthy:
            self._log.mark(size)
        return replace(seen, link=self._link(), log_line="" if healthy else self._log.telling_line())

    def _daemon(self, seen: DaemonObservation) -> DaemonObservation:
        past = seen.past
        pid = self._process.pid
        if pid is None and past.daemon_ran:
            past = past.daemon_ended(
                seen.now, self._how(f"the control daemon {self._process.exit_status or 'has gone'}")
            )
        if pid is None and not seen.other_share:
            pid = self._process.adopt()
        if pid is not None and not past.daemon_ran:
            past = past.daemon_runs(seen.now)
        return replace(seen, past=past, daemon_pid=pid, daemon_exit=self._process.exit_status)

    def _answered(self, seen: DaemonObservation) -> DaemonObservation:
        """What the control daemon says, then what NVML says: a server that is ACTIVE now is on the GPU by then."""
        past, on_gpu, answer, error = seen.past, GpuContexts(), ControlAnswer.GIVEN, ""
        server: Server | None = None
        clients: tuple[int, ...] | None = None
        contexts = 0
        try:
            server, contexts = self._server(past.server)
            if past.server is not None and (server is None or server.pid != past.server):
                past = past.server_lost(self._how(f"MPS server {past.server} ended"))
            past = past.server_is(server.pid if server else None)
            past = self._read_back(past, seen.now) if seen.wanted else past
            on_gpu = self._on_gpu(server)
            if server is None:
                clients = ()
            elif seen.wanted is None or server.status not in _HEALTHY or server.pid not in on_gpu.pids:
                clients = tuple(self._control.clients(server.pid))
            if server is not None:
                past = past.server_stands(server.status, server.pid in on_gpu.pids, clients, seen.now)
        except ControlError as failure:
            answer, error, past = _kind(failure), str(failure), past.unanswered(seen.now)
            on_gpu = self._on_gpu(server)
        return replace(
            seen,
            past=past,
            answer=answer,
            answer_error=error,
            server=server,
            clients=clients,
            contexts=contexts,
            on_gpu=on_gpu,
        )

    def _server(self, last: int | None) -> tuple[Server | None, int]:
        """(the server, client contexts); of several, which `-multiuser-server` does not make, the one that serves."""
        found, contexts = self._control.survey(last)
        servers = [Server(pid, status) for pid, status in found.items()]
        serving = next((server for server in servers if server.status == "ACTIVE"), next(iter(servers), None))
        return serving, contexts

    def _how(self, ended: str) -> str:
        """With the daemon's own word, where it left one."""
        line = self._log.telling_line()
        return f"{ended}: {line}" if line else ended

    def _read_back(self, past: SupervisorState, now: float) -> SupervisorState:
        """What was never written is not read: it is about to be written."""
        stale = now - past.read_at >= REREAD_SECONDS
        if past.defaults_written is not None and (past.defaults is None or stale):
            past = replace(past, defaults=Shown(*self._control.default_limits()), read_at=now)
        unread = past.server_limits is None or stale
        if past.server is not None and past.server_limits_written is not None and unread:
            past = replace(past, server_limits=Shown(*self._control.server_limits(past.server)))
        return past

    def _on_gpu(self, server: Server | None) -> GpuContexts:
        try:
            processes = self._nvml.processes(self._gpu.uuid)
        except NvmlError as error:
            return GpuContexts(error=str(error) or type(error).__name__)
        foreign = (
            Foreign(process.pid, command_name(process.pid))
            for process in processes.compute
            if (server is None or process.pid != server.pid) and not is_mps(process.pid)
        )
        return GpuContexts(_pids(processes), len(processes.mps_clients), tuple(foreign))

    def _link(self) -> Link:
        if client_link.is_current(self._gpu):
            return Link.CURRENT
        return Link.STALE if client_link.exists(self._gpu) else Link.ABSENT

    def _other_share(self, now: float) -> str:
        state = read_model(self._gpu.state, DaemonState).value
        if state is None or state.share == self._share or state.stopped:
            return ""
        return state.share if 0 <= now - state.heartbeat < LIVING_SECONDS else ""


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
