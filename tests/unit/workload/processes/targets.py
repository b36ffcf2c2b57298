"""Targets for the tests of the worker processes. A separate module, because `spawn` imports it in each child."""

import os
import sys
import time
from typing import Any

from gpushare_workload.backend.interface import GpuError, OutOfMemoryError
from gpushare_workload.events import WrongError
from gpushare_workload.processes.shared_array import SharedArray
from gpushare_workload.processes.stopping import Stop, StoppedError
from gpushare_workload.processes.team import Team
from gpushare_workload.processes.worker import Worker


def square(worker: Worker, number: int) -> int:
    return number * number


def moment(worker: Worker, seconds_late: float) -> tuple[float, float]:
    """The moments at which the worker reached the barrier and passed it."""
    time.sleep(seconds_late)
    reached = time.monotonic()
    worker.start()
    return reached, time.monotonic()


def announced(worker: Worker) -> None:
    """Sends its PID, then waits at the barrier."""
    worker.send(os.getpid())
    worker.start()


def environment(worker: Worker, name: str) -> str | None:
    return os.environ.get(name)


def raise_error(worker: Worker, kind: str) -> None:
    raise {
        "gpu": GpuError(46, "all devices are busy"),
        "memory": OutOfMemoryError(2, "out of memory"),
        "wrong": WrongError("1 is not 2"),
        "argument": ValueError("--size 0: must be at least 1"),
        "other": ZeroDivisionError("division by zero"),
    }[kind]


def die(worker: Worker, number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(worker: Worker, code: int) -> None:
    os._exit(code)


def until_asked(worker: Worker) -> str:
    """Works until it is asked to end."""
    worker.send(os.getpid())
    while not worker.asked():
        worker.stop.wait(0.01)
    return "ended in order"


def deaf(worker: Worker, on_gpu: bool) -> None:
    """Never checks whether it shall end."""
    if on_gpu:
        with worker.gpu("numpy"):
            worker.send(os.getpid())
            time.sleep(60)
    worker.send(os.getpid())
    time.sleep(60)


def echo(worker: Worker) -> None:
    while True:
        worker.send(worker.receive())


def answer_until_none(worker: Worker) -> int:
    """Answers each message with its own index and the message; returns how many there were."""
    answers = 0
    while (message := worker.receive()) is not None:
        worker.send((worker.index, message))
        answers += 1
    return answers


def add_to(worker: Worker, shared: SharedArray, value: float) -> None:
    shared.array[worker.index] += value


def not_for_pipes(worker: Worker) -> Any:
    return lambda: None


def large(worker: Worker, size: int) -> bytes:
    """Sends its PID, then returns that many bytes."""
    worker.send(os.getpid())
    return bytes(size)


def sleepers(kind: str) -> None:
    """A program: starts two workers, prints their PIDs, and works until it is asked to end.

    The last line that it prints is the number of seconds that the end of the workers took.
    """
    starts: dict[str, tuple[Any, ...]] = {
        "good": (until_asked,),
        "deaf": (deaf, False),
        "deaf-on-gpu": (deaf, True),
    }
    asked = 0.0
    try:
        with Team(Stop().install()) as team:
            for _ in range(2):
                team.start(*starts[kind])
            print(*[team.receive(60)[1] for _ in range(2)], flush=True)
            try:
                team.results(60)
            finally:
                asked = time.monotonic()
    except StoppedError as error:
        print(error, time.monotonic() - asked, sep="\n", flush=True)


if __name__ == "__main__":
    sleepers(sys.argv[1])
