"""The progress of a scenario on standard error: a bar with the time left on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

UPDATE_SECONDS = 0.1
"""Shortest time between two updates: an update costs more than some of the work that it counts."""
LINE_SECONDS = 10.0
"""Time between two lines, and to the first: what takes less needs none."""


@contextmanager
def progress(
    total: float,
    description: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[float], None]]:
    """Yields a function to call with the amount of `total` that was done since its last call."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _lines(total, description, stream, clock)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(description, total=total)
        done, updated = 0.0, clock()

        def advance(amount: float) -> None:
            nonlocal done, updated
            done += amount
            if clock() - updated >= UPDATE_SECONDS:
                updated = clock()
                bar.update(task, completed=done)

        yield advance


def _lines(total: float, description: str, stream: TextIO, clock: Callable[[], float]) -> Callable[[float], None]:
    began = said = clock()
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done, said
        done, now = done + amount, clock()
        if now - said >= LINE_SECONDS and 0 < done < total:
            said = now
            left = (now - began) * (total - done) / done
            print(f"{description}: {done / total:.0%} done, about {left:.0f} s left", file=stream, flush=True)

    return advance
