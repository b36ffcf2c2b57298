"""Ending CUDA clients in order, through their MPS daemon: the one place that sends `terminate_client`.

Guarantees: a process is asked for at most once at each server, also by an agent that was restarted in between, since a
second `terminate_client` for one process hangs the control daemon, and every new client, until that process has ended
(measured on H200). So what is about to be asked is on disk first, and only an answer that says that nothing was done
allows another try. At a server in FAULT nobody is asked for: every client's contexts are lost there, and the command
hangs the daemon in the same way (measured too). Every call ends within its time limit; a hanging GPU holds up no other.
Does not guarantee an end: an agent that dies between the note on disk and the command leaves a client as it was.
"""

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pydantic import Field

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.process import processes
from gpushare.agent.process.processes import ProcessIdentity
from gpushare.api.base import ApiModel
from gpushare.api.gpunode import Uuid
from gpushare.mps.control import ControlError, ControlTimeoutError, RefusedError
from gpushare.mps.files import read_model, write_model
from gpushare.mps.layout import gpu_dir

LOG = logging.getLogger(__name__)

CONTROL_SECONDS = 30.0
"""For all clients of one call. A wedged daemon is given up after its first command's own limit."""
MOST_REMEMBERED = 256
"""Of one GPU, the latest ones: several times the clients that a server takes (48, or 60 from driver 590). The dead are
among them as long as there is room: a restarted agent tells by them who was ended in order."""


class TerminationCause(StrEnum):
    """Why clients are ended: what asked for it."""

    DEPARTURE = "departure"  # their pod is going
    ENFORCEMENT = "enforcement"  # above their grant, under `enforcement: Terminate`
    CHANGE = "change"  # in the way of a new daemon for longer than maxWait


Told = Callable[[TerminationCause, int, bool], None]
"""(cause, clients ended, whether others could not be)."""


P = TypeVar("P", bound=ProcessIdentity)


class TerminateCommand(Protocol):
    """What is asked of gpushare.mps.control.ControlProgram, with its errors."""

    def sound_servers(self) -> list[int]: ...

    def terminate_client(self, server: int, pid: int) -> bool: ...


class TerminationRecord(ApiModel, frozen=True):
    """One command sent. The start times, in clock ticks since boot, tell processes from later ones of their PIDs."""

    pid: int
    started: int
    server: int
    server_started: int | None = Field(default=None, description="None: it was gone by the time of asking.")


class TerminationFile(ApiModel):
    """endings.json, written and read by the agent alone."""

    version: Literal[1] = 1
    asked: list[TerminationRecord] = Field(default_factory=list)


class ClientTerminator:
    def __init__(
        self,
        root: Path,
        control: Callable[[Uuid], TerminateCommand],
        proc: Path = Path("/proc"),
        told: Told = lambda cause, ended, trouble: None,
    ) -> None:
        """`root`: of the GPUs' directories. `control`: the control program of a GPU's daemon. `told`: of each try."""
        self._root = root
        self._control = control
        self._proc = proc
        self._told = told
        self._lanes: dict[Uuid, BlockingCaller] = {}
        self._asked: dict[Uuid, tuple[TerminationRecord, ...]] = {}

    async def end(self, uuid: Uuid, doomed: Sequence[P], cause: TerminationCause) -> tuple[list[P], str]:
        """(those that the daemon has ended now, what went wrong with others), in the order of `doomed`.

        Passed over in silence: processes asked for before, gone ones, those that are no client of the daemon, and
        clients of a server in FAULT.
        """
        wanted = [process for process in doomed if not self.asked(uuid, process)]
        if not wanted:
            return [], ""
        lane = self._lanes.setdefault(uuid, BlockingCaller(f"MPS daemon of GPU {uuid}", CONTROL_SECONDS))
        try:
            ended, trouble = await lane.call(self._end, uuid, wanted)
        except HungError as error:
            ended, trouble = [], str(error)
        self._told(cause, len(ended), bool(trouble))
        return ended, trouble

    def asked(self, uuid: Uuid, process: ProcessIdentity) -> bool:
        """Whether the daemon was asked to end this process, be it that its answer was lost.

        Counts as long as the server lives that was asked: a client of a new server is a new client.
        """
        return any(
            (entry.pid, entry.started) == (process.pid, process.started) and self._counts(entry)
            for entry in self._known(uuid)
        )

    def _end(self, uuid: Uuid, wanted: Sequence[P]) -> tuple[list[P], str]:
        """Blocks."""
        control = self._control(uuid)
        ended: list[P] = []
        trouble = ""
        try:
            servers = control.sound_servers()
            for process in wanted:
                try:
                    if any(self._end_at(uuid, control, server, process) for server in servers):
                        ended.append(process)
                except RefusedError as error:
                    trouble = str(error)
        except ControlError as error:
            trouble = str(error)
        return ended, trouble

    def _end_at(self, uuid: Uuid, control: TerminateCommand, server: int, process: ProcessIdentity) -> bool:
        # Looked at again under the lane: another caller may have asked meanwhile, or the PID be somebody else's.
        if self.asked(uuid, process) or processes.read_start_time(process.pid, self._proc) != process.started:
            return False
        entry = TerminationRecord(
            pid=process.pid,
            started=process.started,
            server=server,
            server_started=processes.read_start_time(server, self._proc),
        )
        self._remember(uuid, (*self._known(uuid), entry))
        try:
            ended = control.terminate_client(server, process.pid)
        except ControlTimeoutError:
            raise
        except ControlError:
            self._forget(uuid, entry)
            raise
        if not ended:
            self._forget(uuid, entry)
        return ended

    def _known(self, uuid: Uuid) -> tuple[TerminationRecord, ...]:
        if uuid not in self._asked:
            read = read_model(gpu_dir(self._root, uuid).endings, TerminationFile)
            if read.value is None and not read.absent:
                LOG.warning("GPU %s: clients ended earlier are not known: %s", uuid, read.reason)
            self._asked[uuid] = tuple(read.value.asked) if read.value else ()
        return self._asked[uuid]

    def _remember(self, uuid: Uuid, entries: tuple[TerminationRecord, ...]) -> None:
        if len(entries) > MOST_REMEMBERED:
            entries = tuple(entry for entry in entries if self._counts(entry))
        kept = entries[-MOST_REMEMBERED:]
        self._asked[uuid] = kept
        try:
            write_model(gpu_dir(self._root, uuid).endings, TerminationFile(asked=list(kept)))
        except OSError as error:
            # Memory still holds it. Not to end a client that is about to be killed would be the greater harm.
            LOG.warning("GPU %s: an ended client could not be noted for the next agent: %s", uuid, error)

    def _forget(self, uuid: Uuid, entry: TerminationRecord) -> None:
        """The answer says that nothing was done."""
        self._remember(uuid, tuple(other for other in self._known(uuid) if other != entry))

    def _counts(self, entry: TerminationRecord) -> bool:
        """Whether client and server are still the processes that they were."""
        started = processes.read_start_time(entry.pid, self._proc)
        return started == entry.started and (
            processes.read_start_time(entry.server, self._proc) == entry.server_started
        )
