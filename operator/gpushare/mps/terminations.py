"""Which processes the agent had the MPS daemon terminate: endings.json, for later agents and for the attach broker.

A process whose contexts were terminated can replace its program (`exec`) and make another context, as a client like any
other (measured on an H100). One that has replaced nothing could look the same, and a second `terminate_client` for that
one hangs the daemon. So the agent asks once for a process, and the broker lets it in no more.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import field

from gpushare.mps.wire import WireModel
from gpushare.process.procfs import PROC, read_start_time


class TerminationRecord(WireModel, frozen=True, kw_only=True):
    """One command sent. The start times are in clock ticks since boot.

    `server_started` None: the server had ended before the command.
    """

    pid: int
    started: int
    server: int
    server_started: int | None = None

    def counts(self, proc: Path = PROC) -> bool:
        """Tells whether client and server are still the same processes: a client of a new server is a new client."""
        alive = read_start_time(self.pid, proc) == self.started
        return alive and read_start_time(self.server, proc) == self.server_started


class TerminationFile(WireModel, frozen=True, kw_only=True):
    """endings.json, written by the agent."""

    version: Literal[1] = 1
    asked: list[TerminationRecord] = field(default_factory=list)


def was_asked(records: Iterable[TerminationRecord], pid: int, proc: Path = PROC) -> bool:
    """Tells whether the daemon was asked to terminate the process that has this PID now, even if its answer was
    lost."""
    return any(record.pid == pid and record.counts(proc) for record in records)
