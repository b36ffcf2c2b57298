"""Terminating CUDA clients in order, through their MPS daemon: the only module that sends `terminate_client`.

Guarantees: the daemon is asked to terminate a process at most once for each server, also by an agent that was restarted
in between. A second `terminate_client` for one process hangs the MPS daemon, and every new client, until that process
has ended (measured on H200). So each command is on disk before it is sent, and only an answer that says that nothing
was done allows another try. The attach broker reads the same file, so that no such process comes back with another
program (gpushare.mps.terminations). A server in FAULT is never asked: every client's contexts are lost there, and the
command hangs the daemon in the same way (measured too). Does not guarantee an end: if the agent dies between the note
on disk and the command, the client goes on.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from gpushare.agent.process.processes import ProcessIdentity, is_alive
from gpushare.api.gpunode import Uuid
from gpushare.mps.control import ControlError, ControlTimeoutError, DaemonControl, RefusedError
from gpushare.mps.files import READABLE, read_model, write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.terminations import TerminationFile, TerminationRecord, was_asked
from gpushare.process.procfs import PROC, read_start_time

LOG = logging.getLogger(__name__)

MAX_RECORDS = 256
"""The latest records of one GPU that are kept: several times the clients that a server takes (48, or 60 from driver
590). Ended processes are kept as long as there is room: a restarted agent knows by them who was terminated in order."""

P = TypeVar("P", bound=ProcessIdentity)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """`terminated`: those that the daemon has terminated now. `problem`: why others could not be; empty: there is none.
    `untried`: those that were not asked for, since the caller has something more urgent.
    """

    terminated: Sequence[T]
    problem: str = ""
    untried: Sequence[T] = ()


class ClientTerminator:
    def __init__(self, root: Path, control: Callable[[Uuid], DaemonControl], proc: Path = PROC) -> None:
        """`root`: of the GPUs' directories. `control`: the control program of a GPU's MPS daemon."""
        self._root = root
        self._control = control
        self._proc = proc
        self._records: dict[Uuid, tuple[TerminationRecord, ...]] = {}

    def terminate(self, uuid: Uuid, clients: Sequence[P], gives_way: Callable[[], bool] = lambda: False) -> Attempt[P]:
        """Asks the daemon for one client after the other. Blocks; one call at a time for each GPU.

        `gives_way` is asked before each client; True: the rest is left untried. Left out without a
        reason: processes that the daemon was asked for before, ended ones, processes that are no clients of the daemon,
        and clients of a server in FAULT.
        """
        due = [process for process in clients if not self.was_asked(uuid, process)]
        terminated: list[P] = []
        problem = ""
        try:
            control = self._control(uuid)
            servers = control.sound_servers() if due else []
            for number, process in enumerate(due):
                if gives_way():
                    return Attempt(terminated, problem, due[number:])
                try:
                    if any(self._terminate_at(uuid, control, server, process) for server in servers):
                        terminated.append(process)
                except RefusedError as error:
                    problem = str(error)
        except ControlError as error:
            problem = str(error)
        return Attempt(terminated, problem)

    def was_asked(self, uuid: Uuid, process: ProcessIdentity) -> bool:
        """Whether the daemon was asked to terminate this process, even if its answer was lost.

        Counts as long as that server lives: a client of a new server is a new client.
        """
        return was_asked(self._known(uuid), process.pid, self._proc)

    def _terminate_at(self, uuid: Uuid, control: DaemonControl, server: int, process: ProcessIdentity) -> bool:
        # Checked again for each: the PID may have been reused meanwhile.
        if self.was_asked(uuid, process) or not is_alive(process, self._proc):
            return False
        record = TerminationRecord(
            pid=process.pid,
            started=process.started,
            server=server,
            server_started=read_start_time(server, self._proc),
        )
        self._save(uuid, (*self._known(uuid), record))
        try:
            terminated = control.terminate_client(server, process.pid)
        except ControlTimeoutError:
            raise
        except ControlError:
            self._withdraw(uuid, record)
            raise
        if not terminated:
            self._withdraw(uuid, record)
        return terminated

    def _known(self, uuid: Uuid) -> tuple[TerminationRecord, ...]:
        if uuid not in self._records:
            file = gpu_dir(self._root, uuid).endings
            read = read_model(file, TerminationFile)
            with suppress(OSError):
                file.chmod(READABLE)  # an agent of an earlier release wrote it for itself alone
            if read.value is None and not read.absent:
                LOG.warning("GPU %s: clients terminated earlier are not known: %s", uuid, read.reason)
            # Another thread may have read it meanwhile, and have asked since: what it added must not be lost.
            self._records.setdefault(uuid, tuple(read.value.asked) if read.value else ())
        return self._records[uuid]

    def _save(self, uuid: Uuid, records: tuple[TerminationRecord, ...]) -> None:
        if len(records) > MAX_RECORDS:
            records = tuple(record for record in records if record.counts(self._proc))
        kept = records[-MAX_RECORDS:]
        self._records[uuid] = kept
        try:
            write_model(gpu_dir(self._root, uuid).endings, TerminationFile(asked=list(kept)), READABLE)
        except OSError as error:
            # It is still in memory. Not to terminate a client that is about to be killed would be the greater harm.
            LOG.warning("GPU %s: neither broker nor the next agent will know a terminated client: %s", uuid, error)

    def _withdraw(self, uuid: Uuid, record: TerminationRecord) -> None:
        """The answer says that nothing was done."""
        self._save(uuid, tuple(other for other in self._known(uuid) if other != record))
