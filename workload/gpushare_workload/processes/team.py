"""The worker processes of a scenario: started by `spawn`, released together, ended together.

Guarantees:
- Only `spawn` is used: a forked child cannot use a CUDA context that its parent made.
- A worker that dies, fails, hangs or is refused its GPU becomes an error that names the worker and says how. Every wait
  has a limit, also for a worker that was stopped in the middle of a message.
- SIGINT and SIGTERM act on the parent alone. It asks the workers to end, and they do so between two kernels. A worker
  that is on no GPU is killed after GRACE_SECONDS, at once if it has not begun its work or has sent its outcome. A
  worker that is on a GPU is killed last, with a message, because that can end its neighbours (see `depart`).
- Workers learn of their parent's death, also by SIGKILL, from the end of a pipe, and end between two kernels too.
  (PR_SET_PDEATHSIG would be a signal in mid-kernel.)
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self, TypeVar

from gpushare_workload.processes import common_start
from gpushare_workload.processes.member import PATIENCE_SECONDS, Member, spawn
from gpushare_workload.processes.outcomes import Hung, Outcome, WorkerError, unwrap
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.processes.worker import Go, Worker, WorkerMessage

START_SECONDS = 120.0
"""Time for all workers to import their code and to get a CUDA context: 100 of them on two cores take a while."""
GRACE_SECONDS = 1.5
"""Time for workers that were asked to end."""
LAST_SECONDS = 0.3
"""More time for workers on a GPU. Together with GRACE_SECONDS less than two, as docs/workload.md promises."""
EXIT_SECONDS = 10.0
"""Time for workers that gave their result: a large CUDA context takes a moment to go."""
LEAD_SECONDS = 0.02
"""Time from the release of the barrier to the common start: longer than the messages take."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Team:
    """Worker processes with one lifetime: `with Team(stop) as team` leaves none of them behind.

    `patience` is the longest time in seconds for one message to a worker or from it.
    """

    def __init__(self, stop: Stop, patience: int = PATIENCE_SECONDS) -> None:
        self._stop, self._patience = stop, patience
        self._members: list[Member] = []
        self._messages: deque[tuple[int, Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(EXIT_SECONDS if error is None else GRACE_SECONDS)

    def __len__(self) -> int:
        return len(self._members)

    def start(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Starts `target(worker, *arguments)`, a module-level function, in its own process; returns its index.

        `environment` is set there before CUDA starts. Raises StoppedError when the program was asked to end.
        """
        self._stop.check()
        index = len(self._members)
        name = name or f"worker {index}"
        self._members.append(spawn(index, name, target, arguments, environment or {}, self._patience))
        return index

    def go(self, seconds: float = START_SECONDS, at: float | None = None, every_member: bool = True) -> int:
        """Releases every Worker.start() at one moment after all workers have reached it; returns how many started.

        `at` is that moment in seconds since 1970; None: now. A worker that ended before is left out, or is an error if
        `every_member`.
        """
        self._until(lambda member: member.ready or member.ended, seconds, "not ready to start", every_member)
        begin = time.monotonic() + (LEAD_SECONDS if at is None else common_start.delay(at, time.time()))
        waiting = [member for member in self._members if member.ready and not member.ended]
        for member in waiting:
            member.post(Go(begin))
        while time.monotonic() < begin:
            self._pump(begin)
        return len(waiting)

    def send(self, index: int, message: Any) -> None:
        """Sends to Worker.receive(). Send small messages, one at a time; put large data into a SharedArray."""
        self._members[index].post(WorkerMessage(message))

    def receive(self, seconds: float) -> tuple[int, Any]:
        """(index of the worker, message) of the next Worker.send(). Raises when a worker ended without a result."""
        end = time.monotonic() + seconds
        while not self._messages:
            self._raise_failures()
            if time.monotonic() >= end or not self._unfinished():
                raise WorkerError(f"no message of any worker within {seconds:g} s: {self._states(self._unfinished())}")
            self._pump(end)
        return self._messages.popleft()

    def send_all(self, message: Any) -> None:
        """Sends one message to every worker, as `send` does."""
        for index in range(len(self._members)):
            self.send(index, message)

    def gather(self, seconds: float) -> list[Any]:
        """One message of every worker, in the order of their start, within that time. Raises as receive() does."""
        return list(self._answers(range(len(self._members)), seconds).values())

    def ask(self, requests: Mapping[int, Any], seconds: float) -> dict[int, Any]:
        """Sends a message to some workers, by index, and returns the answer of each. Raises as receive() does."""
        for index, request in requests.items():
            self.send(index, request)
        return self._answers(requests, seconds)

    def finish(self, seconds: float) -> list[Any]:
        """Tells every worker, by None, that no message follows; returns results()."""
        self.send_all(None)
        return self.results(seconds)

    def _answers(self, workers: Iterable[int], seconds: float) -> dict[int, Any]:
        """One message of each of these workers, in their order."""
        end, answers = time.monotonic() + seconds, dict[int, Any]()
        workers = list(workers)
        while len(answers) < len(workers):
            index, answer = self.receive(max(0.0, end - time.monotonic()))
            answers[index] = answer
        return {index: answers[index] for index in workers}

    def wait_for_fewer(self, processes: int, seconds: float) -> None:
        """Returns when fewer than `processes` run. Raises as results() does."""
        end = time.monotonic() + seconds
        while len(alive := self._alive()) >= processes:
            self._raise_failures()
            if time.monotonic() >= end:
                raise WorkerError(f"not ended within {seconds:g} s: {self._states(alive)}")
            self._pump(end, alive)

    def results(self, seconds: float) -> list[Any]:
        """What the targets returned, in the order of their start. Raises when the first one fails, as unwrap() does."""
        self._until(lambda member: member.ended, seconds, "no result", every_member=True)
        return [unwrap(str(member), member.outcome) for member in self._members if member.outcome is not None]

    def outcomes(self, seconds: float) -> list[Outcome]:
        """How every worker ended, in the order of their start. Failures are values here."""
        end = time.monotonic() + seconds
        while self._unfinished() and time.monotonic() < end:
            self._pump(end)
        return [member.outcome or Hung(seconds, member.state(), member.on_gpu) for member in self._members]

    def end(self, seconds: float = GRACE_SECONDS) -> None:
        """Asks all workers to end, and kills those that do not. Takes at most `seconds` + LAST_SECONDS.

        A signal shortens the wait to GRACE_SECONDS.
        """
        for member in self._members:
            member.ask_to_end()
        self._linger(seconds)
        for member in self._alive():
            if not member.on_gpu:
                member.process.kill()
        self._linger(LAST_SECONDS)
        for member in self._alive():
            print(f"{member} does not end and uses the GPU: killed, which can end its neighbours", file=sys.stderr)
            member.process.kill()
        for member in self._members:
            member.reap()
        self._members.clear()

    def _linger(self, seconds: float) -> None:
        """Reads messages until the workers end: one that writes a large result cannot end before the result is read."""
        end, hurried = time.monotonic() + seconds, False
        while (alive := self._alive()) and time.monotonic() < end:
            links = {member.link: member for member in alive if not member.link.closed}
            waits: list[Connection | int] = [*links, *(member.process.sentinel for member in alive)]
            if not self._stop.asked():
                waits.append(self._stop.fileno())
            elif not hurried:
                end, hurried = min(end, time.monotonic() + GRACE_SECONDS), True
            if hurried or seconds <= GRACE_SECONDS:
                # On a busy machine an interpreter takes long to start and to exit.
                for member in alive:
                    if member.expendable:
                        member.process.kill()
            for source in connection.wait(waits, max(0.0, end - time.monotonic())):
                if isinstance(source, Connection):
                    links[source].receive()

    def _pump(self, end: float, dying: Iterable[Member] = ()) -> None:
        """Waits until `end` at most for a message of any worker or the end of one in `dying`; reads the messages.

        Raises StoppedError.
        """
        links = {member.link: index for index, member in enumerate(self._members) if member.outcome is None}
        waits: list[Connection | int] = [*links, *(member.process.sentinel for member in dying), self._stop.fileno()]
        for source in connection.wait(waits, max(0.0, end - time.monotonic())):
            if isinstance(source, Connection):
                received = self._members[links[source]].receive()
                if received is not None:
                    self._messages.append((links[source], received.message))
        self._stop.check()

    def _until(self, holds: Callable[[Member], bool], seconds: float, otherwise: str, every_member: bool) -> None:
        end = time.monotonic() + seconds
        while late := [member for member in self._members if not holds(member)]:
            if every_member:
                self._raise_failures()
            if time.monotonic() >= end:
                raise WorkerError(f"{otherwise} within {seconds:g} s: {self._states(late)}")
            self._pump(end)
        if every_member:
            self._raise_failures()

    def _raise_failures(self) -> None:
        for member in self._members:
            if member.failed and member.outcome is not None:
                unwrap(str(member), member.outcome)

    def _alive(self) -> list[Member]:
        return [member for member in self._members if member.alive]

    def _unfinished(self) -> list[Member]:
        return [member for member in self._members if member.outcome is None]

    @staticmethod
    def _states(members: Iterable[Member]) -> str:
        return ", ".join(
            f"{member} in state {member.state()}{' on the GPU' if member.on_gpu else ''}" for member in members
        )


def together(
    target: Callable[[Worker, Argument], Result],
    arguments: Sequence[Argument],
    *,
    stop: Stop,
    seconds: float,
    at: float | None = None,
) -> list[Result]:
    """Runs one process for each argument, released together by Worker.start(); their results in the same order."""
    with Team(stop) as team:
        for argument in arguments:
            team.start(target, argument)
        team.go(at=at)
        return team.results(seconds)
