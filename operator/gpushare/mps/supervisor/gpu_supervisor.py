"""One GPU's daemon, kept as daemon.json wants it: look, decide, tell state.json, act; over and over, in a thread.

Guarantees: state.json is written at every change and at every look, and a look takes place every 2 s, or after the
time limit of a hanging control command; an error in one look is logged and the next look begins afresh. When a thread
ends, this share's daemon on the GPU has ended. Does not guarantee to notice daemon.json before the next look.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Limits
from gpushare.mps.clock import boot_clock
from gpushare.mps.control import ControlError, ControlProgram
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor import client_link
from gpushare.mps.supervisor.daemon_log import DaemonLog
from gpushare.mps.supervisor.daemon_process import DaemonProcess, kill_server
from gpushare.mps.supervisor.decision import POLL_SECONDS, Action, Decision, decide
from gpushare.mps.supervisor.gather import Gatherer
from gpushare.mps.supervisor.observation import DaemonObservation
from gpushare.mps.supervisor.state import SupervisorState
from gpushare.mps.wire import DaemonState, DaemonWanted
from gpushare.nvml.types import Nvml

LOG = logging.getLogger(__name__)
MESSAGE_CHARACTERS = 1024
FAULT_REASONS = (DaemonReason.FAULTED, DaemonReason.SERVER_LET_GO)
FAULTED_TOLD = 64
"""More than any driver takes on one GPU."""


class GpuSupervisor:
    """Of one GPU, for `share`. `leaving`: set when all are to end. `poll_seconds`: the longest pause."""

    def __init__(
        self,
        gpu: GpuDir,
        share: str,
        bin_dir: Path | None,
        nvml: Nvml,
        leaving: threading.Event,
        remark: str = "",
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._gpu = gpu
        self._share = share
        self._leaving = leaving
        self._wake = threading.Event()
        self._remark = remark
        self._poll_seconds = poll_seconds
        self._log = DaemonLog(gpu.log)
        self._process = DaemonProcess(gpu, bin_dir, self._log, self.wake)
        self._control = ControlProgram(bin_dir, gpu.pipe, gpu.log)
        self._gatherer = Gatherer(gpu, share, self._process, self._control, nvml, self._log)
        self._past = SupervisorState()
        self._wanted: DaemonWanted | None = None
        self._told: DaemonState | None = None

    def wake(self) -> None:
        """Look now rather than at the end of the pause."""
        self._wake.set()

    def run(self) -> None:
        while True:
            try:
                decision = self.step()
            except Exception:  # whatever it is: the daemon goes on serving, and so does its supervision
                LOG.exception("GPU %s: this look failed", self._gpu.uuid)
                decision = None
            if decision is not None and decision.stopped and self._ends():
                return
            self._wake.wait(self._poll_seconds if decision is None else min(decision.pause, self._poll_seconds))
            self._wake.clear()

    def step(self) -> Decision:
        """One look and what follows from it."""
        self._log.rotate()
        seen = self._gatherer.look(self._limits(), self._past, self._remark)
        decision = decide(seen)
        if decision.reason in FAULT_REASONS:
            seen = replace(seen, past=seen.past.fault_told(decision.message))
        self._past = seen.past
        self._tell(seen, decision)
        self._act(decision.action, seen)
        return decision

    def _limits(self) -> Limits | None:
        """What daemon.json wants now; None: that this share's daemon ends. An unreadable file is no news."""
        read = read_model(self._gpu.wanted, DaemonWanted)
        if read.value is not None or read.absent:
            self._wanted = read.value
        else:
            LOG.warning("GPU %s: %s; what it wanted before still counts", self._gpu.uuid, read.reason)
        wanted = self._wanted
        if wanted is None or wanted.share != self._share or wanted.stop or self._leaving.is_set():
            return None
        return wanted.limits

    def _ends(self) -> bool:
        """A daemon that was told to stop is watched on, since it may be wanted again."""
        gone = self._wanted is None or self._wanted.share != self._share
        return gone or self._leaving.is_set()

    def _tell(self, seen: DaemonObservation, decision: Decision) -> None:
        if seen.other_share:
            return
        state = DaemonState(
            uuid=self._gpu.uuid,
            share=self._share,
            heartbeat=boot_clock(),
            reason=decision.reason,
            message=decision.message[:MESSAGE_CHARACTERS],
            control_pid=seen.daemon_pid,
            server_pid=seen.server.pid if seen.server else None,
            server_status=seen.server.status if seen.server else "",
            in_force=seen.in_force,
            restarts=seen.past.restarts,
            servers_lost=seen.past.servers_lost,
            last_failure=seen.past.last_failure[:MESSAGE_CHARACTERS],
            faults=seen.past.faults,
            last_fault=seen.past.last_fault[:MESSAGE_CHARACTERS],
            contexts=seen.contexts,
            fault_since=seen.past.fault_since,
            faulted_clients=[pid for pid in seen.past.faulted if pid in (seen.clients or ())][:FAULTED_TOLD],
            stopped=decision.stopped,
        )
        if self._told is None or (state.reason, state.message) != (self._told.reason, self._told.message):
            LOG.info("GPU %s: %s %s", self._gpu.uuid, state.reason.value, state.message)
        try:
            write_model(self._gpu.state, state)
        except FileNotFoundError:
            # The agent removes the directory once it has read that the daemon has ended: nobody reads on.
            if not decision.stopped:
                raise
        self._told = state

    def _act(self, action: Action | None, seen: DaemonObservation) -> None:
        """Carry out `action`; what hinders it is remembered, told at the next look, and tried again then."""
        if action is None:
            return
        try:
            self._past = replace(_ACTIONS[action](self, seen, self._past), trouble="")
        except (ControlError, OSError) as error:
            LOG.warning("GPU %s: %s failed: %s", self._gpu.uuid, action.name.lower().replace("_", " "), error)
            self._past = replace(self._past, trouble=str(error))

    def _start_daemon(self, seen: DaemonObservation, past: SupervisorState) -> SupervisorState:
        try:
            self._process.start()
        except ControlError:
            self._past = past.daemon_ended(seen.now)
            raise
        return replace(past, starts=past.starts + 1).daemon_runs(seen.now)

    def _kill_daemon(self, _: DaemonObservation, past: SupervisorState) -> SupervisorState:
        self._process.kill()
        return past

    def _write_defaults(self, seen: DaemonObservation, past: SupervisorState) -> SupervisorState:
        if seen.wanted is None:
            return past
        self._past = replace(past, defaults=None, defaults_written=seen.wanted)
        self._control.set_default_threads(seen.wanted.threads)
        self._control.set_default_memory(seen.wanted.memory_mib)
        self._control.set_default_priority(seen.wanted.priority)
        return self._past

    def _start_server(self, seen: DaemonObservation, past: SupervisorState) -> SupervisorState:
        self._past = past.server_attempted(seen.now)
        self._control.start_server()
        return self._past

    def _kill_server(self, _: DaemonObservation, past: SupervisorState) -> SupervisorState:
        if past.server is not None and kill_server(past.server):
            LOG.info("GPU %s: ended server %d", self._gpu.uuid, past.server)
            return replace(past.server_is(None), unanswered_since=past.unanswered_since)
        return past

    def _write_server_limits(self, seen: DaemonObservation, past: SupervisorState) -> SupervisorState:
        if seen.wanted is None or seen.server is None:
            return past
        self._past = replace(past, server_limits=None, server_limits_written=seen.wanted)
        self._control.set_server_threads(seen.server.pid, seen.wanted.threads)
        self._control.set_server_memory(seen.server.pid, seen.wanted.memory_mib)
        return self._past

    def _renew_link(self, _: DaemonObservation, past: SupervisorState) -> SupervisorState:
        client_link.renew(self._gpu)
        return past

    def _remove_link(self, _: DaemonObservation, past: SupervisorState) -> SupervisorState:
        client_link.remove(self._gpu)
        return past

    def _quit(self, _: DaemonObservation, past: SupervisorState) -> SupervisorState:
        self._control.quit()
        return past

    def _clean_up(self, _: DaemonObservation, __: SupervisorState) -> SupervisorState:
        """An end that was wanted is no failure: a later daemon starts without a history."""
        client_link.remove(self._gpu)
        self._process.clean_up()
        return SupervisorState()


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
