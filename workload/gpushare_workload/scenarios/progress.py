"""A progress bar on standard error for a terminal; nothing in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

UPDATE_SECONDS = 0.1
"""Shortest time between two updates: an update costs more than some of the work that it counts."""


@contextmanager
def progress(total: float, description: str) -> Iterator[Callable[[float], None]]:
    """Yields a function to call with the amount of `total` that was done since its last call."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        done, updated = 0.0, time.monotonic()

        def advance(amount: float) -> None:
            nonlocal done, updated
            done += amount
            if time.monotonic() - updated >= UPDATE_SECONDS:
                updated = time.monotonic()
                bar.update(task, completed=done)

        yield advance
