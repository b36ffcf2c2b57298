"""How far a scenario is, as a bar on standard error where that is a terminal; nothing in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 0.1
"""Seconds between two updates: telling costs more than some of what is told."""


@contextmanager
def progress(total: float, description: str) -> Iterator[Callable[[float], None]]:
    """Yields a function that is told how much of `total` has been done since its last call."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        done, told = 0.0, time.monotonic()

        def advance(amount: float) -> None:
            nonlocal done, told
            done += amount
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                bar.update(task, completed=done)

        yield advance
