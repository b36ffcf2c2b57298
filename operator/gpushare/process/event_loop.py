"""The event loop of every part: one that waits by poll(2).

asyncio's own waits by epoll, whose watched descriptors the kernel counts for each user of the node over all containers
(fs.epoll.max_user_watches), without an exemption. A pod whose user is that of a part could use them up, and that part
would accept no connection any more. poll(2) has no such count. Its cost grows with the descriptors that are open:
measurements/results/scale/event-loop.json.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def polling_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The same as `asyncio.run(work)`."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        return runner.run(work)
