"""Who hangs up while it waits, whatever it has said before that nobody has read.

The event loop cannot tell: what is unread makes a connection readable for ever. An epoll could, but its watches are
counted for each user of the machine, so a tenant with ours could use them up.
"""

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.1
"""Between two looks at all connections of a GPU; one at 200 of them takes some 10 µs."""


class HangUps:
    """For the connections of one GPU. Takes no descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._called: dict[int, Callable[[], None]] = {}
        self._next: asyncio.TimerHandle | None = None

    @contextmanager
    def watched(self, sock: socket.socket, hung_up: Callable[[], None]) -> Iterator[None]:
        """`hung_up` is called, once at most, soon after the other side hangs up while the block runs."""
        number = sock.fileno()
        self._poll.register(number, select.POLLRDHUP)
        self._called[number] = hung_up
        if self._next is None:
            self._plan()
        try:
            yield
        finally:
            self._forget(number)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _plan(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._next = None
        for number, _ in self._poll.poll(0):
            self._forget(number)()
        if self._called and self._next is None:
            self._plan()

    def _forget(self, number: int) -> Callable[[], None]:
        called = self._called.pop(number, None)
        if called is None:
            return lambda: None
        self._poll.unregister(number)
        return called
