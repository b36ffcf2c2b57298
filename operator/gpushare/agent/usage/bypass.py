"""Processes on a shared GPU that are no MPS clients, ended by signals: first SIGTERM, ten seconds later SIGKILL.

They share no MPS server with anybody, so their end takes nobody along. Guarantees: no signal reaches another process
than the one that was seen (a pidfd, and the start time read through it), nor one that the MPS daemon lists as a client,
be it that NVML listed it elsewhere.
"""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes, signals
from gpushare.agent.usage.usage import Listed
from gpushare.api.gpunode import Uuid
from gpushare.mps.control import ControlError, NoDaemonError

KILL_AFTER_SECONDS = 10.0
CONTROL_SECONDS = 10.0

Sent = tuple[Listed, str]


class MpsClientList(Protocol):
    """What is asked of gpushare.mps.control.ControlProgram, with its errors."""

    def server_list(self) -> list[int]: ...

    def clients(self, server: int) -> list[int]: ...


class NonMpsProcesses:
    def __init__(self, control: Callable[[Uuid], MpsClientList], clock: Callable[[], float], proc: Path) -> None:
        self._control = control
        self._clock = clock
        self._proc = proc
        self._lanes: dict[Uuid, BlockingCaller] = {}
        self._warned: dict[tuple[int, int], float] = {}
        """When SIGTERM was sent, by PID and start time."""

    async def end(self, uuid: Uuid, strays: Sequence[Listed]) -> tuple[list[Sent], str]:
        """What was sent to whom, and what went wrong with others. To be called again until they are gone."""
        lane = self._lanes.setdefault(uuid, BlockingCaller(f"strays on GPU {uuid}", CONTROL_SECONDS))
        try:
            return await lane.call(self._end, uuid, strays)
        except HungError as error:
            return [], str(error)

    def _end(self, uuid: Uuid, strays: Sequence[Listed]) -> tuple[list[Sent], str]:
        """Blocks."""
        self._warned = {
            key: at for key, at in self._warned.items() if processes.read_start_time(key[0], self._proc) == key[1]
        }
        try:
            clients = self._clients(uuid)
        except ControlError as error:
            return [], str(error)
        sent: list[Sent] = []
        trouble = ""
        for process in strays:
            if process.pid in clients:
                trouble = f"process {process.pid} is a client of the MPS daemon, although NVML does not say so"
                continue
            try:
                number = self._due(process)
                if number is not None and self._send(process, number):
                    sent.append((process, number.name))
            except OSError as error:
                trouble = f"process {process.pid} cannot be signalled: {error.strerror}"
        return sent, trouble

    def _clients(self, uuid: Uuid) -> set[int]:
        control = self._control(uuid)
        try:
            return {pid for server in control.server_list() for pid in control.clients(server)}
        except NoDaemonError:
            return set()

    def _due(self, process: Listed) -> signal.Signals | None:
        warned_at = self._warned.get((process.pid, process.started))
        if warned_at is None:
            return signal.SIGTERM
        return signal.SIGKILL if self._clock() - warned_at >= KILL_AFTER_SECONDS else None

    def _send(self, process: Listed, number: signal.Signals) -> bool:
        """False: it is gone."""
        if not signals.send(process, number, self._proc):
            return False
        self._warned.setdefault((process.pid, process.started), self._clock())
        return True
