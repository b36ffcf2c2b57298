"""Who hangs up while it waits, whatever it has said before that nobody has read."""

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class HangUps:
    """For the connections of one GPU. It takes one descriptor, from the first one that is watched on."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._called: dict[int, Callable[[], None]] = {}

    @contextmanager
    def watched(self, sock: socket.socket, hung_up: Callable[[], None]) -> Iterator[None]:
        """`hung_up` is called, once at most, if the other side hangs up while the block runs. OSError."""
        number = sock.fileno()
        self._opened().register(number, select.EPOLLRDHUP)
        self._called[number] = hung_up
        try:
            yield
        finally:
            self._forget(number)

    def close(self) -> None:
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll)
            self._epoll.close()
            self._epoll = None

    def _opened(self) -> select.epoll:
        if self._epoll is None:
            self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(self._epoll, self._poll)
        return self._epoll

    def _poll(self) -> None:
        if self._epoll is not None:
            for number, _ in self._epoll.poll(0):
                self._forget(number)()

    def _forget(self, number: int) -> Callable[[], None]:
        called = self._called.pop(number, None)
        if called is not None and self._epoll is not None:
            self._epoll.unregister(number)
        return called or (lambda: None)
