"""The child's side of a team: what a target is handed, and the frame that it runs in.

Guaranteed to the parent: every end of the target arrives as an Outcome, or as the end of the pipe. Guaranteed to the
target: it learns within a moment that it shall end, also when the parent was killed, and it is never interrupted.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from gpushare_workload.backend import Backend, open_backend
from gpushare_workload.outcomes import Done, Outcome, failure
from gpushare_workload.stopping import Stop, StoppedError

LINGER = 5.0
"""Seconds after which a worker that shall end and is on no GPU ends by force, also without its parent."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker waits in start()."""


@dataclass(frozen=True, slots=True)
class Go:
    moment: float
    """CLOCK_MONOTONIC, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class OnGpu:
    now: bool


@dataclass(frozen=True, slots=True)
class Told:
    message: Any


class Worker:
    """A process of a team, as its own code sees it. `index` counts from 0 in the order of Team.start()."""

    def __init__(self, index: int, name: str, link: Connection, stop: Stop) -> None:
        self.index, self.name, self.stop = index, name, stop
        self.on_gpu = False
        self._link = link

    @contextmanager
    def gpu(self, choice: str) -> Iterator[Backend]:
        """This process's GPU context, closed when nothing runs on it any more. Raises GpuError when it is refused."""
        with self.using_gpu():
            backend = open_backend(choice)
            try:
                yield backend
            finally:
                backend.close()

    @contextmanager
    def using_gpu(self) -> Iterator[None]:
        """The parent knows meanwhile that a kill would hurt the neighbours. Leave it when no kernel runs any more."""
        self._on_gpu(True)
        try:
            yield
        finally:
            self._on_gpu(False)

    def start(self) -> None:
        """The barrier: returns in all processes of the team at the same moment, after each of them called it."""
        self._post(Ready())
        while True:
            said = self._take()
            if isinstance(said, Go):
                break
        self.stop.wait(said.moment - time.monotonic())
        self.stop.check()

    def asked(self) -> bool:
        """Whether to end: look between kernels. Costs nothing."""
        return self.stop.asked()

    def send(self, message: Any) -> None:
        """To Team.receive(). Raises StoppedError where the parent is gone."""
        self._post(Told(message))

    def receive(self) -> Any:
        """What Team.send() sent. Raises StoppedError once the worker shall end."""
        while True:
            said = self._take()
            if isinstance(said, Told):
                return said.message

    def tasks(self) -> Iterator[Any]:
        """What dispatch() hands out to this worker; each counts as done when the next one is asked for."""
        while (task := self.receive()) is not None:
            yield task
            self.send(None)

    def finish(self, outcome: Outcome) -> None:
        """The last word."""
        with suppress(StoppedError):
            self._post(outcome)

    def _take(self) -> Any:
        """A message that came before the end was asked for is not lost: it is what the end interrupts."""
        ready = connection.wait([self._link, self.stop.fileno()])
        self.stop.check()
        if self._link in ready:
            try:
                return self._link.recv()
            except (EOFError, OSError) as error:
                raise StoppedError("the parent is gone") from error
        return None

    def _post(self, message: object) -> None:
        try:
            self._link.send(message)
        except OSError as error:
            raise StoppedError("the parent is gone") from error

    def _on_gpu(self, now: bool) -> None:
        self.on_gpu = now
        with suppress(StoppedError):
            self._post(OnGpu(now))


def main(
    index: int,
    name: str,
    link: Connection,
    life: Connection,
    environment: Mapping[str, str],
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """Runs `target(worker, *arguments)`. `life` ends when the worker shall: the parent closes it, or died with it."""
    stop = Stop().install()
    # Ctrl-C reaches the whole group: what to do about it is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    worker = Worker(index, name, link, stop)
    threading.Thread(target=_watch, args=(life, worker), name="life", daemon=True).start()
    # Before CUDA starts: it reads its settings once.
    os.environ.update(environment)
    outcome: Outcome
    try:
        outcome = Done(target(worker, *arguments))
    except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
        outcome = failure(error)
    try:
        worker.finish(outcome)
    except Exception as error:  # noqa: BLE001 - a result that does not cross a pipe is the target's mistake
        worker.finish(failure(error))


def _watch(life: Connection, worker: Worker) -> None:
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        pass
    except Exception:  # noqa: BLE001 - the interpreter is being taken down under this thread
        return
    worker.stop.ask()
    time.sleep(LINGER)
    if not worker.on_gpu:
        os._exit(1)
