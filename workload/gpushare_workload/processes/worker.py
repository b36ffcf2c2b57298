"""The child's side of a team: the object that a target receives, and the frame in which the target runs.

Guarantees: the parent receives an Outcome for every end of the target, or the end of the pipe. The target learns within
a moment that it shall end, also when the parent was killed; nothing interrupts it.
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
from gpushare_workload.processes.outcomes import Done, Outcome, failure
from gpushare_workload.processes.stopping import Stop, StoppedError

LINGER_SECONDS = 5.0
"""The time after which a worker that was asked to end, and is on no GPU, exits by force, even without its parent."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Worker to team: it waits in start()."""


@dataclass(frozen=True, slots=True)
class Go:
    """Team to worker: start at `moment`."""

    moment: float
    """CLOCK_MONOTONIC in seconds, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class WorkerOnGpu:
    """Worker to team: whether it uses the GPU from now on."""

    now: bool


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A message of the scenario itself, in either direction."""

    message: Any


class Worker:
    """A process of a team, as its own code sees it. `index` counts from 0 in the order of Team.start()."""

    def __init__(self, index: int, name: str, link: Connection, stop: Stop) -> None:
        self.index, self.name, self.stop = index, name, stop
        self.on_gpu = False
        self._link = link

    @contextmanager
    def gpu(self, choice: str) -> Iterator[Backend]:
        """This process's GPU context, which is closed after its last kernel. Raises GpuError when CUDA refuses it."""
        with self.using_gpu():
            backend = open_backend(choice)
            try:
                yield backend
            finally:
                backend.close()

    @contextmanager
    def using_gpu(self) -> Iterator[None]:
        """Informs the parent that a kill would hurt the neighbours. Leave the context after the last kernel."""
        self._use_gpu(True)
        try:
            yield
        finally:
            self._use_gpu(False)

    def start(self) -> None:
        """A barrier: returns in all processes of the team at the same moment, after each of them called it."""
        self._post(WorkerReady())
        while True:
            received = self._take()
            if isinstance(received, Go):
                break
        self.stop.wait(received.moment - time.monotonic())
        self.stop.check()

    def asked(self) -> bool:
        """Whether the worker was asked to end. Check it between kernels; the check costs nothing."""
        return self.stop.asked()

    def send(self, message: Any) -> None:
        """Sends to Team.receive(). Raises StoppedError when the parent is gone."""
        self._post(WorkerMessage(message))

    def receive(self) -> Any:
        """The next message of Team.send(). Raises StoppedError when the worker is asked to end."""
        while True:
            received = self._take()
            if isinstance(received, WorkerMessage):
                return received.message

    def tasks(self) -> Iterator[Any]:
        """The tasks that dispatch() sends to this worker. A task counts as done when the next one is requested."""
        while (task := self.receive()) is not None:
            yield task
            self.send(None)

    def finish(self, outcome: Outcome) -> None:
        """Sends the outcome, after which the worker sends nothing."""
        with suppress(StoppedError):
            self._post(outcome)

    def _take(self) -> Any:
        """The next message, None if none came. Raises StoppedError when the worker is asked to end."""
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

    def _use_gpu(self, now: bool) -> None:
        self.on_gpu = now
        with suppress(StoppedError):
            self._post(WorkerOnGpu(now))


def main(
    index: int,
    name: str,
    link: Connection,
    life: Connection,
    environment: Mapping[str, str],
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """Runs `target(worker, *arguments)`. The worker shall end at the end of `life`: the parent closed it or died."""
    stop = Stop().install()
    # Ctrl-C reaches the whole process group. The parent decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    worker = Worker(index, name, link, stop)
    threading.Thread(target=_watch, args=(life, worker), name="life", daemon=True).start()
    # Before CUDA starts: CUDA reads its environment once.
    os.environ.update(environment)
    outcome: Outcome
    try:
        outcome = Done(target(worker, *arguments))
    except Exception as error:  # noqa: BLE001 - the parent receives every exception as an outcome
        outcome = failure(error)
    try:
        worker.finish(outcome)
    except Exception as error:  # noqa: BLE001 - the target returned something that cannot be pickled
        worker.finish(failure(error))


def _watch(life: Connection, worker: Worker) -> None:
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        pass
    except Exception:  # noqa: BLE001 - the interpreter is shutting down under this thread
        return
    worker.stop.ask()
    time.sleep(LINGER_SECONDS)
    if not worker.on_gpu:
        os._exit(1)
