"""The event loop of every part: one that waits by poll(2), ends by the signals that end a container, and has a time
limit for what a shutdown still does.

asyncio's own waits by epoll, whose watched descriptors the kernel counts for each user of the node over all containers
(fs.epoll.max_user_watches), without an exemption. A pod whose user is that of a part could use them up, and that part
would accept no connection any more. poll(2) has no such count. Its cost grows with the descriptors that are open:
measurements/results/scale/event-loop.json.
"""

import asyncio
import selectors
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def polling_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The same as `asyncio.run(work)`."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        return runner.run(work)


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
        run(main())
    except asyncio.CancelledError:
        return True
    return False


async def within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns or raises what `work` does. TimeoutError: it took longer, and was cancelled. Await it at once.

    This holds in a task that was cancelled, too: that of a shutdown. `asyncio.timeout` does not with Python 3.11.0 to
    3.11.2 (Debian 12: 3.11.2): at the end of the time such a task gets a CancelledError and no TimeoutError, so that it
    skips whatever was to follow. In other places `asyncio.timeout` will do.
    """

    async def limited() -> Result:
        async with asyncio.timeout(seconds):
            return await work

    return await asyncio.create_task(limited())  # nobody has cancelled this one
