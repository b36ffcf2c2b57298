"""The parent's handle on one worker process: starting it, and messages that never wait for a stopped process."""

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

from gpushare_workload.outcomes import Died, Done, Failed, Hung, Outcome, Refused, WorkerError
from gpushare_workload.worker import OnGpu, Ready, Told, main

PATIENCE = 5
"""Seconds for one message to pass: a worker that is stopped by a signal neither reads nor writes."""
REAP_SECONDS = 2.0
"""From the end of a worker's pipe to the end of its process: a CUDA context in between takes a moment to go."""


class Member:
    """`name (pid N)` is how errors call it. `on_gpu`: a kill would hurt its neighbours on the GPU."""

    def __init__(self, name: str, process: SpawnProcess, link: Connection, life: Connection) -> None:
        self.name, self.process, self.link, self._life = name, process, link, life
        self.ready = False
        self.on_gpu = False
        self.idle = True
        """It has not begun its work, or has said its last word: ending it at once costs nobody anything."""
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def spare(self) -> bool:
        """Whether a kill hurts nobody and loses nothing."""
        return self.idle and not self.on_gpu

    @property
    def failed(self) -> bool:
        return self.outcome is not None and not isinstance(self.outcome, Done)

    def hear(self) -> Told | None:
        """Takes one message that is there, or notes the end of the worker."""
        try:
            said = self.link.recv()
        except BlockingIOError:
            self.outcome = Hung(PATIENCE, self.state(), self.on_gpu)
            self.link.close()
            return None
        except (EOFError, OSError):
            self._lost()
            return None
        self.idle = isinstance(said, Done | Refused | Failed)
        match said:
            case Ready():
                self.ready = True
            case OnGpu(now):
                self.on_gpu = now
            case Told():
                return said
            case Done() | Refused() | Failed():
                self.outcome = said
        return None

    def post(self, message: object) -> None:
        """Nothing where the worker has ended: how it did is in the pipe. Raises WorkerError where it does not read."""
        try:
            self.link.send(message)
        except BlockingIOError:
            raise WorkerError(f"{self} took no message for {PATIENCE} s: state {self.state()}") from None
        except OSError:
            return

    def ask_to_end(self) -> None:
        self._life.close()
        self.outcome = self.outcome or Failed("stopped", "asked to end before its work was done")

    def reap(self) -> None:
        self.process.join(PATIENCE)
        self.link.close()
        if self.process.exitcode is not None:
            self.process.close()

    def state(self) -> str:
        """The kernel's letter for the process: R runs, S sleeps, D waits for a device, T is stopped by a signal."""
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
    index: int, name: str, target: Callable[..., Any], arguments: tuple[Any, ...], environment: Mapping[str, str]
) -> Member:
    """Starts `target(worker, *arguments)` in a process of its own, with `environment` set before CUDA starts."""
    context = multiprocessing.get_context("spawn")
    link, their_link = context.Pipe()
    their_life, life = context.Pipe(duplex=False)
    _bound(link)
    everything = (index, name, their_link, their_life, dict(environment), target, arguments)
    process = context.Process(target=main, args=everything, name=name, daemon=True)
    # Until the child handles them, these signals wait. The tracker first: starting it unblocks them.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        their_link.close()
        their_life.close()
    return Member(name, process, link, life)


def _bound(link: Connection) -> None:
    """A read or write of the parent fails after PATIENCE seconds, instead of waiting for a stopped worker."""
    limit = struct.pack("ll", PATIENCE, 0)
    end = socket.socket(fileno=link.fileno())
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    finally:
        end.detach()
