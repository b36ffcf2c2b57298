"""Keeps one GPU's daemon as daemon.json asks: observe, decide, write state.json, act; again and again, in a thread.

Guarantees: state.json is written at each observation, and there is one every 2 s, or after the time limit of a control
command that hangs. An error in one observation is logged, and the next one begins afresh. When the thread has ended,
this share's daemon on the GPU has ended. Not guaranteed: that a change of daemon.json counts before the next
observation.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from gpushare.api.conditions import DaemonReason
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlError, ControlProgram
from gpushare.mps.control_socket import ControlSocket
from gpushare.mps.control_v3 import ControlProgramV3
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.protocol import MpsProtocol, ProtocolSetting, choose, read_help
from gpushare.mps.supervisor import client_link
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, kill_server
from gpushare.mps.supervisor.decision import POLL_SECONDS, Action, Decision, decide
from gpushare.mps.supervisor.gather import REREAD_SECONDS, Gatherer
from gpushare.mps.supervisor.namespaces import Namespaces
from gpushare.mps.supervisor.observation import ControlAnswer, DaemonObservation
from gpushare.mps.supervisor.state import FAULT_REASONS, SupervisorState, inherited
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import DaemonLimits, DaemonState, DesiredDaemon, ServedClient
from gpushare.nvml.types import Nvml
from gpushare.process import users

LOG = logging.getLogger(__name__)
MESSAGE_CHARACTERS = 1024
MAX_FAULTED_CLIENTS = 64
"""More than any driver accepts on one GPU."""
MAX_SERVED_CLIENTS = 256
TURN_COMMAND_SECONDS = 2.0
"""The time for the commands of a turn, which take a tenth of a millisecond each."""


class GpuSupervisor:
    """Supervises one GPU for `share`. `leaving`: set when all daemons have to end.

    `poll_seconds`: the longest time between two observations; `reread_seconds`: between two readings of the limits.
    `broker_uid`: whom the attach broker runs as, which stands between the daemon and its clients. `protocol`: what a
    daemon that is started may speak; one that runs already goes on with what it speaks.
    """

    def __init__(
        self,
        gpu: GpuDir,
        share: str,
        bin_dir: Path | None,
        nvml: Nvml,
        leaving: threading.Event,
        remark: str = "",
        poll_seconds: float = POLL_SECONDS,
        reread_seconds: float = REREAD_SECONDS,
        broker_uid: int = users.BROKER,
        protocol: ProtocolSetting = ProtocolSetting.V2,
    ) -> None:
        self._gpu = gpu
        self._share = share
        self._leaving = leaving
        self._wake = threading.Event()
        self._remark = remark
        self._poll_seconds = poll_seconds
        self._log = DaemonLog(gpu.log)
        self._process = DaemonProcess(gpu, bin_dir, self._log, self.wake)
        self._v2 = ControlProgram(bin_dir, gpu.pipe, gpu.log)
        self._v3 = ControlProgramV3(bin_dir, gpu.pipe, gpu.log)
        self._namespaces = Namespaces(gpu, self._v3)
        self._setting = protocol
        self._driver_version = nvml.driver_version
        self._bin_dir = bin_dir
        self._server_limits = threading.Lock()
        self._terms: Terms | str = "the MPS daemon is not observed yet"
        self._turns = TurnServer(
            gpu,
            ControlSocket(gpu.control, TURN_COMMAND_SECONDS),
            lambda: self._terms,
            self._server_limits,
            broker_uid,
            self._namespaces,
        )
        self._gatherer = Gatherer(
            gpu, share, self._process, self._v2, self._v3, nvml, self._log, self._server_limits, reread_seconds
        )
        self._state = inherited(read_model(gpu.state, DaemonState).value, share)
        self._desired: DesiredDaemon | None = None
        self._reported: DaemonState | None = None
        self._problems = LogOnChange(LOG)

    def wake(self) -> None:
        """Observe now, not at the end of the pause."""
        self._wake.set()

    def run(self) -> None:
        while True:
            try:
                decision = self.step()
            except Exception:  # the daemon goes on serving, so its supervision has to go on too
                LOG.exception("GPU %s: this observation failed", self._gpu.uuid)
                decision = None
            if decision is not None and decision.stopped and self._ends():
                self._turns.end()
                return
            self._wake.wait(self._poll_seconds if decision is None else min(decision.pause, self._poll_seconds))
            self._wake.clear()

    def step(self) -> Decision:
        """One observation, and the action that follows from it."""
        self._bound_log()
        observed = self._gatherer.observe(self._limits(), self._state, self._remark)
        decision = decide(observed)
        if decision.reason in FAULT_REASONS:
            observed = replace(observed, state=observed.state.with_fault(decision.message))
        self._state = observed.state
        self._offer_turns(observed, decision)
        self._report(observed, decision)
        self._act(decision.action, observed)
        return decision

    def _bound_log(self) -> None:
        try:
            self._log.rotate()
            self._problems.clear("log")
        except OSError as error:  # such as a read-only file system: the daemon is looked after all the same
            self._problems.log("GPU %s: its daemon's log outgrows its bound: %s", self._gpu.uuid, error, key="log")

    def _offer_turns(self, observed: DaemonObservation, decision: Decision) -> None:
        """Offers turns only while the daemon is READY: to command a server in FAULT hangs the daemon (measured)."""
        if decision.reason is DaemonReason.READY and observed.server is not None and observed.desired is not None:
            self._terms = Terms(observed.server.pid, observed.desired, observed.protocol)
        else:
            self._terms = f"{decision.reason.value}: {decision.message}"
        if decision.stopped or observed.other_share:
            return
        try:
            if observed.protocol is MpsProtocol.V3:
                self._namespaces.publish_clients([pid for pid in self._v3.listed if pid in observed.gpu_use.pids])
            self._turns.start()
            self._problems.clear("turns")
        except OSError as error:  # tried again at the next observation; the daemon is looked after all the same
            self._problems.log("GPU %s: nobody can attach yet: %s", self._gpu.uuid, error, key="turns")

    def _limits(self) -> DaemonLimits | None:
        """The limits of daemon.json; None if this share's daemon has to end. An unreadable file changes nothing."""
        read = read_model(self._gpu.wanted, DesiredDaemon)
        if read.value is not None or read.absent:
            self._desired = read.value
        else:
            LOG.warning("GPU %s: %s; its previous content still counts", self._gpu.uuid, read.reason)
        desired = self._desired
        if desired is None or desired.share != self._share or desired.stop or self._leaving.is_set():
            return None
        return desired.limits

    def _ends(self) -> bool:
        """A daemon with `stop` in daemon.json is supervised on, because it may be desired again."""
        gone = self._desired is None or self._desired.share != self._share
        return gone or self._leaving.is_set()

    def _report(self, observed: DaemonObservation, decision: Decision) -> None:
        if observed.other_share:
            return
        kept = observed.state
        report = DaemonState(
            uuid=self._gpu.uuid,
            share=self._share,
            heartbeat=boot_clock(),
            reason=decision.reason,
            message=decision.message[:MESSAGE_CHARACTERS],
            control_pid=observed.daemon_pid,
            server_pid=observed.server.pid if observed.server else None,
            server_status=observed.server.status if observed.server else "",
            in_force=observed.in_force,
            restarts=kept.restarts,
            servers_lost=kept.servers_lost,
            last_failure=kept.last_failure[:MESSAGE_CHARACTERS],
            lost_contexts=kept.lost_contexts,
            faults=kept.faults,
            last_fault=kept.last_fault[:MESSAGE_CHARACTERS],
            contexts=sum(observed.contexts.values()),
            clients=_clients(observed),
            fault_since=kept.fault_since,
            faulted_clients=_remaining(kept.faulted, observed.clients)[:MAX_FAULTED_CLIENTS],
            stopped=decision.stopped,
            protocol=observed.protocol,
        )
        if self._reported is None or (report.reason, report.message) != (self._reported.reason, self._reported.message):
            LOG.info("GPU %s: %s %s", self._gpu.uuid, report.reason.value, report.message)
        try:
            write_model(self._gpu.state, report)
        except FileNotFoundError:
            # The agent removes the directory once it has read that the daemon has ended. Nobody reads state.json then.
            if not decision.stopped:
                raise
        except OSError as error:
            # Such as a full disk. The agent sees an old heartbeat; the daemon is to be looked after all the same.
            self._problems.log("GPU %s: its state is not written: %s", self._gpu.uuid, error)
            return
        self._problems.clear()
        self._reported = report

    def _act(self, action: Action | None, observed: DaemonObservation) -> None:
        """Carry out `action`. An error is kept as `trouble`; the next observation reports it and tries again."""
        if action is None:
            return
        try:
            self._state = replace(_ACTIONS[action](self, observed, self._state), trouble="")
        except (ControlError, OSError) as error:
            LOG.warning("GPU %s: %s failed: %s", self._gpu.uuid, action.name.lower().replace("_", " "), error)
            self._state = replace(self._state, trouble=str(error))

    def _start_daemon(self, observed: DaemonObservation, state: SupervisorState) -> SupervisorState:
        protocol, why = choose(self._setting, state.failures, self._driver_version, self._read_help)
        if why:
            LOG.info("GPU %s: %s", self._gpu.uuid, why)
        self._namespaces.clear()
        try:
            self._process.start(protocol)
        except ControlError:
            self._state = state.daemon_ended(observed.now)
            raise
        return replace(state, starts=state.starts + 1).daemon_running(observed.now)

    def _read_help(self) -> str:
        return read_help(self._bin_dir, self._gpu.pipe, self._gpu.log)

    def _kill_daemon(self, _: DaemonObservation, state: SupervisorState) -> SupervisorState:
        self._process.kill()
        return state

    def _write_defaults(self, observed: DaemonObservation, state: SupervisorState) -> SupervisorState:
        if observed.desired is None:
            return state
        self._state = replace(state, defaults=None, defaults_written=observed.desired)
        self._v2.set_default_threads(observed.desired.threads)
        self._v2.set_default_memory(observed.desired.memory_mib)
        return self._state

    def _start_server(self, observed: DaemonObservation, state: SupervisorState) -> SupervisorState:
        self._state = state.server_start_requested(observed.now)
        self._gatherer.control.start_server()
        return self._state

    def _kill_server(self, _: DaemonObservation, state: SupervisorState) -> SupervisorState:
        if state.server is not None and kill_server(state.server):
            LOG.info("GPU %s: ended server %d", self._gpu.uuid, state.server)
            return replace(state.server_seen(None), unanswered_since=state.unanswered_since)
        return state

    def _write_server_limits(self, observed: DaemonObservation, state: SupervisorState) -> SupervisorState:
        if observed.desired is None or observed.server is None:
            return state
        self._state = replace(state, server_limits=None, server_limits_written=observed.desired)
        with self._server_limits:
            limits = observed.desired
            self._gatherer.control.write_server_limits(observed.server.pid, limits.threads, limits.memory_mib)
        return self._state

    def _renew_link(self, _: DaemonObservation, state: SupervisorState) -> SupervisorState:
        client_link.renew(self._gpu, self._share)
        return state

    def _remove_link(self, _: DaemonObservation, state: SupervisorState) -> SupervisorState:
        client_link.remove(self._gpu)
        self._turns.let_nobody_in()
        return state

    def _quit(self, _: DaemonObservation, state: SupervisorState) -> SupervisorState:
        # That of protocol v3 ends its clients with it. Whoever attaches meanwhile holds this lock.
        with self._server_limits if self._process.protocol is MpsProtocol.V3 else nullcontext():
            self._gatherer.control.quit()
        return state

    def _clean_up(self, _: DaemonObservation, __: SupervisorState) -> SupervisorState:
        """A requested end is no failure: a later daemon starts without a history."""
        client_link.remove(self._gpu)
        self._turns.let_nobody_in()
        self._namespaces.clear()
        self._process.clean_up()
        return SupervisorState()


def _clients(observed: DaemonObservation) -> list[ServedClient] | None:
    """None: the daemon has not answered."""
    if observed.answer is not ControlAnswer.GIVEN:
        return None
    served = [ServedClient(pid=pid, contexts=contexts) for pid, contexts in sorted(observed.contexts.items())]
    return served[:MAX_SERVED_CLIENTS]


def _remaining(faulted: tuple[int, ...], clients: tuple[int, ...] | None) -> list[int]:
    """The PIDs of `faulted` that are clients still; all of them where `clients` is None: the daemon has not said."""
    return [pid for pid in faulted if clients is None or pid in clients]


_ACTIONS: dict[Action, Callable[[GpuSupervisor, DaemonObservation, SupervisorState], SupervisorState]] = {
    Action.START_DAEMON: GpuSupervisor._start_daemon,
    Action.KILL_DAEMON: GpuSupervisor._kill_daemon,
    Action.WRITE_DEFAULTS: GpuSupervisor._write_defaults,
    Action.START_SERVER: GpuSupervisor._start_server,
    Action.KILL_SERVER: GpuSupervisor._kill_server,
    Action.WRITE_SERVER_LIMITS: GpuSupervisor._write_server_limits,
    Action.RENEW_LINK: GpuSupervisor._renew_link,
    Action.REMOVE_LINK: GpuSupervisor._remove_link,
    Action.QUIT: GpuSupervisor._quit,
    Action.CLEAN_UP: GpuSupervisor._clean_up,
}
