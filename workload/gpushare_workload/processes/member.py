"""The parent's handle on one worker process: its start, its messages and its outcome.

Guarantees: a read or write of the parent fails after `patience` seconds instead of waiting for a stopped worker.
"""

import multiprocessing
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from gpushare_workload.processes.outcomes import Died, Done, Failed, Hung, Outcome, Refused, WorkerError
from gpushare_workload.processes.worker import WorkerMessage, WorkerOnGpu, WorkerReady, main

PATIENCE_SECONDS = 5
"""Longest time for one message to pass: a worker that is stopped by a signal neither reads nor writes."""
REAP_SECONDS = 2.0
"""Time from the end of a worker's pipe to the end of its process: a CUDA context takes a moment to go."""


class Member:
    """A worker as its team sees it. Errors call it `name (pid N)`."""

    def __init__(
        self, name: str, process: SpawnProcess, link: Connection, life: Connection, patience: int = PATIENCE_SECONDS
    ) -> None:
        self.name, self.process, self.link, self._life, self._patience = name, process, link, life, patience
        self.ready = False
        self.on_gpu = False
        """The worker uses the GPU: killing it would hurt its neighbours there."""
        self.idle = True
        """The worker has not begun its work, or has sent its outcome: killing it loses nothing."""
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def expendable(self) -> bool:
        """Whether a kill hurts no neighbour and loses no work."""
        return self.idle and not self.on_gpu

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    @property
    def failed(self) -> bool:
        return self.ended and not isinstance(self.outcome, Done)

    def receive(self) -> WorkerMessage | None:
        """Reads what is in the pipe: a message for the team is returned, a change of the worker's state is recorded."""
        try:
            received = self.link.recv()
        except BlockingIOError:
            self.outcome = Hung(self._patience, self.state(), self.on_gpu)
            self.link.close()
            return None
        except (EOFError, OSError):
            self._lost()
            return None
        self.idle = isinstance(received, Done | Refused | Failed)
        match received:
            case WorkerReady():
                self.ready = True
            case WorkerOnGpu(now):
                self.on_gpu = now
            case WorkerMessage():
                return received
            case Done() | Refused() | Failed():
                self.outcome = received
        return None

    def post(self, message: object) -> None:
        """Does nothing when the worker has ended: its outcome is in the pipe.

        Raises WorkerError if it does not read.
        """
        try:
            self.link.send(message)
        except BlockingIOError:
            raise WorkerError(f"{self} took no message for {self._patience} s: state {self.state()}") from None
        except OSError:
            return

    def ask_to_end(self) -> None:
        self._life.close()
        self.outcome = self.outcome or Failed("stopped", "asked to end before its work was done")

    def reap(self) -> None:
        self.process.join(self._patience)
        self.link.close()
        if self.process.exitcode is not None:
            self.process.close()

    def state(self) -> str:
        """The kernel's letter for the process: R runs, S sleeps, D waits for a device, T is stopped; else `gone`."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "gone"

    def _lost(self) -> None:
        self.link.close()
        if self.outcome is None:
            self.process.join(REAP_SECONDS)
            self.outcome = Died(self.process.exitcode, self.on_gpu)


def spawn(
    index: int,
    name: str,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    patience: int = PATIENCE_SECONDS,
) -> Member:
    """Starts `target(worker, *arguments)` in its own process, with `environment` set before CUDA starts."""
    context = multiprocessing.get_context("spawn")
    link, their_link = context.Pipe()
    their_life, life = context.Pipe(duplex=False)
    _limit_waits(link, patience)
    everything = (index, name, their_link, their_life, dict(environment), target, arguments)
    process = context.Process(target=main, args=everything, name=name, daemon=True)
    # These signals stay pending until the child handles them. Start the tracker first: its start unblocks them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        their_link.close()
        their_life.close()
    return Member(name, process, link, life, patience)


def _limit_waits(link: Connection, seconds: int) -> None:
    limit = struct.pack("ll", seconds, 0)
    end = socket.socket(fileno=link.fileno())
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    finally:
        end.detach()
