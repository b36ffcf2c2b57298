"""The signals by which a container is asked to end."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from gpushare.process import event_loop


def on_end_signal(act: Callable[[], object]) -> None:
    """SIGTERM and SIGINT call `act` in the running event loop from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, act)


def run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work` in an event loop of its own. True: such a signal cancelled it. Raises what it raises."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - narrows for the type checker
        on_end_signal(task.cancel)
        await work

    try:
        event_loop.run(main())
    except asyncio.CancelledError:
        return True
    return False
