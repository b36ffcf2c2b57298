"""Child processes of a scenario: started by `spawn`, released together, and never left behind.

- `spawn` alone: a forked child cannot use a CUDA context that its parent made.
- A worker that dies, fails, is refused its GPU or hangs is an error that names it and says how. Nothing here waits
  without a limit, also not for a worker that was stopped in the middle of a message.
- SIGINT and SIGTERM reach the parent alone. It asks the workers to end, and they do between two kernels: within
  `GRACE` seconds, or a worker that is on no GPU is killed (at once where it has not said anything yet, or its last
  word). One that is on a GPU is killed at the very end, with a message, since that can end its neighbours (see
  `depart`).
- The workers learn of their parent's death, SIGKILL included, by the end of a pipe, and end between two kernels too.
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

from gpushare_workload import start
from gpushare_workload.member import Member, spawn
from gpushare_workload.outcomes import Hung, Outcome, WorkerError, unwrap
from gpushare_workload.stopping import Stop
from gpushare_workload.worker import Go, Told, Worker

START_SECONDS = 120.0
"""For all workers to import their code and to get a CUDA context: 100 of them on two cores take a while."""
GRACE = 1.5
"""Seconds for the end of workers that were asked to end."""
LAST = 0.3
"""Seconds more for those that are on a GPU. With GRACE less than two, as docs/workload.md promises."""
LEISURE = 10.0
"""Seconds for the end of workers that gave their result: a large CUDA context takes a moment to go."""
LEAD = 0.02
"""Seconds from the release of the barrier to the common start: longer than the messages take."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Team:
    """Worker processes with one life: `with Team(stop) as team` leaves none of them behind."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._members: list[Member] = []
        self._told: deque[tuple[int, Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(LEISURE if error is None else GRACE)

    def __len__(self) -> int:
        return len(self._members)

    def start(
        self,
        target: Callable[..., Any],
        *arguments: Any,
        name: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Starts `target(worker, *arguments)`, a function of a module, in a process of its own; returns its index.

        `environment` is set there before CUDA starts. Raises StoppedError once the program was asked to end.
        """
        self._stop.check()
        index = len(self._members)
        self._members.append(spawn(index, name or f"worker {index}", target, arguments, environment or {}))
        return index

    def go(self, seconds: float = START_SECONDS, at: float | None = None, everybody: bool = True) -> int:
        """Releases every Worker.start() at one moment, once all workers are there; returns how many started.

        `at` is that moment in seconds since 1970, else it is now. A worker that ended before is an error, or left
        out where not `everybody`.
        """
        self._until(lambda it: it.ready or it.outcome is not None, seconds, "not ready to start", everybody)
        begin = time.monotonic() + (LEAD if at is None else start.delay(at, time.time()))
        waiting = [it for it in self._members if it.ready and it.outcome is None]
        for member in waiting:
            member.post(Go(begin))
        while time.monotonic() < begin:
            self._pump(begin)
        return len(waiting)

    def send(self, index: int, message: Any) -> None:
        """To Worker.receive(). Keep it small, and one at a time: what is large goes into a SharedArray."""
        self._members[index].post(Told(message))

    def receive(self, seconds: float) -> tuple[int, Any]:
        """The next Worker.send() of anybody, with its index. Raises when any worker ended in another way than done."""
        end = time.monotonic() + seconds
        while not self._told:
            self._raise_failures()
            if time.monotonic() >= end or not self._unfinished():
                raise WorkerError(f"no word of any worker within {seconds:g} s: {self._states(self._unfinished())}")
            self._pump(end)
        return self._told.popleft()

    def wait_for_fewer(self, processes: int, seconds: float) -> None:
        """Returns once fewer than that many run. Raises as results() does."""
        end = time.monotonic() + seconds
        while len(alive := self._alive()) >= processes:
            self._raise_failures()
            if time.monotonic() >= end:
                raise WorkerError(f"not ended within {seconds:g} s: {self._states(alive)}")
            self._pump(end, alive)

    def results(self, seconds: float) -> list[Any]:
        """What the targets returned, in the order of their start. Raises as soon as one failed: see unwrap()."""
        self._until(lambda it: it.outcome is not None, seconds, "no result", everybody=True)
        return [unwrap(str(it), it.outcome) for it in self._members if it.outcome is not None]

    def outcomes(self, seconds: float) -> list[Outcome]:
        """How every worker ended, in the order of their start; failures are values here."""
        end = time.monotonic() + seconds
        while self._unfinished() and time.monotonic() < end:
            self._pump(end)
        return [it.outcome or Hung(seconds, it.state(), it.on_gpu) for it in self._members]

    def end(self, seconds: float = GRACE) -> None:
        """Asks all workers to end and sees to it. Returns within `seconds` + LAST, and soon once a signal came."""
        for member in self._members:
            member.ask_to_end()
        self._linger(seconds)
        for member in self._alive():
            if not member.on_gpu:
                member.process.kill()
        self._linger(LAST)
        for member in self._alive():
            print(f"{member} does not end and uses the GPU: killed, which can end its neighbours", file=sys.stderr)
            member.process.kill()
        for member in self._members:
            member.reap()
        self._members.clear()

    def _linger(self, seconds: float) -> None:
        """Hears the workers out, since one that writes a large result cannot end before it was read."""
        end, hurried = time.monotonic() + seconds, False
        while (alive := self._alive()) and time.monotonic() < end:
            links = {it.link: it for it in alive if not it.link.closed}
            waits: list[Connection | int] = [*links, *(it.process.sentinel for it in alive)]
            if not self._stop.asked():
                waits.append(self._stop.fileno())
            elif not hurried:
                end, hurried = min(end, time.monotonic() + GRACE), True
            if hurried or seconds <= GRACE:
                # On a busy machine an interpreter takes its time to begin, and to end.
                for member in (it for it in alive if it.spare):
                    member.process.kill()
            for source in connection.wait(waits, max(0.0, end - time.monotonic())):
                if isinstance(source, Connection):
                    links[source].hear()

    def _pump(self, end: float, dying: Iterable[Member] = ()) -> None:
        """Waits for a word of any worker or the end of one that is `dying`, at most until `end`, and takes what there
        is. Raises StoppedError."""
        links = {it.link: index for index, it in enumerate(self._members) if it.outcome is None}
        waits: list[Connection | int] = [*links, *(it.process.sentinel for it in dying), self._stop.fileno()]
        for source in connection.wait(waits, max(0.0, end - time.monotonic())):
            if isinstance(source, Connection):
                said = self._members[links[source]].hear()
                if said is not None:
                    self._told.append((links[source], said.message))
        self._stop.check()

    def _until(self, holds: Callable[[Member], bool], seconds: float, otherwise: str, everybody: bool) -> None:
        end = time.monotonic() + seconds
        while late := [it for it in self._members if not holds(it)]:
            if everybody:
                self._raise_failures()
            if time.monotonic() >= end:
                raise WorkerError(f"{otherwise} within {seconds:g} s: {self._states(late)}")
            self._pump(end)
        if everybody:
            self._raise_failures()

    def _raise_failures(self) -> None:
        for member in self._members:
            if member.failed and member.outcome is not None:
                unwrap(str(member), member.outcome)

    def _alive(self) -> list[Member]:
        return [it for it in self._members if it.alive]

    def _unfinished(self) -> list[Member]:
        return [it for it in self._members if it.outcome is None]

    @staticmethod
    def _states(members: Iterable[Member]) -> str:
        return ", ".join(f"{it} in state {it.state()}{' on the GPU' if it.on_gpu else ''}" for it in members)


def together(
    target: Callable[[Worker, Argument], Result],
    arguments: Sequence[Argument],
    *,
    stop: Stop,
    seconds: float,
    at: float | None = None,
) -> list[Result]:
    """One process for each argument, released together by Worker.start(); their results in the same order."""
    with Team(stop) as team:
        for argument in arguments:
            team.start(target, argument)
        team.go(at=at)
        return team.results(seconds)
