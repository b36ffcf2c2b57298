"""The loops of one process: work, a wait for the interval or a wake-up, work again.

Guarantees: a wake-up that comes while the work runs starts the next turn; several wake-ups are one turn; an OSError is
logged and does not end the loop, any other exception does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

LOG = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]

DEBOUNCE_SECONDS = 0.05
"""A burst of wake-ups, such as many changed pods, costs one turn."""


@dataclass(frozen=True, slots=True)
class Loop:
    """`seconds`: at most so long between two turns of `work`. None: `work` is a loop itself and runs until cancelled.

    `wake`: setting it starts the next turn, after `debounce` seconds for others. `timed`: the turns are measured.
    """

    name: str
    work: Work
    seconds: float | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    timed: bool = False
    debounce: float = DEBOUNCE_SECONDS


async def run(
    loop: Loop, record: Callable[[str, float], None] | None = None, clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs until cancelled. `record`: called after each turn of a timed loop with its name and its seconds."""
    if loop.seconds is None:
        await loop.work()
        return
    while True:
        began = clock()
        try:
            await loop.work()
        except OSError as error:
            LOG.error("%s failed, trying again: %s", loop.name, error)
        if record is not None and loop.timed:
            record(loop.name, clock() - began)
        if await _woken(loop.wake, loop.seconds):
            await asyncio.sleep(loop.debounce)


async def _woken(wake: asyncio.Event, seconds: float) -> bool:
    """False: the interval is over."""
    # Not asyncio.wait_for: Python 3.11's can swallow a cancellation that comes with the wake-up.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    woken = wake.is_set()
    wake.clear()
    return woken
