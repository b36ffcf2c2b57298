"""select() over the driver's listeners, its connections, and the processes behind them. Never polls.

Guarantees: a connection that sends something else than a request is dropped, and no other one suffers; a connection is
dropped when its peer closes it or when the process that opened it ends.
"""

import logging
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from gpushare.simulation.wire import LINE_LIMIT, Disconnected, Lines, Message, encode, peer

log = logging.getLogger(__name__)


class Connection:
    """One accepted connection. A subclass answers messages in `handle` and cleans up in `gone`."""

    def __init__(self, loop: "DriverLoop", sock: socket.socket) -> None:
        self.loop = loop
        self.sock = sock
        self.pid, self.uid = peer(sock)
        self._lines = Lines()

    def handle(self, message: Message) -> Message | None:
        """The answer, or None if there is none. Raises KeyError, TypeError or ValueError for an invalid request."""
        raise NotImplementedError

    def gone(self) -> None:
        """The peer closed the connection or died."""

    def send(self, message: Message) -> None:
        # A peer that does not read must not stop the driver. Its buffer is full only after thousands of messages.
        try:
            self.sock.send(encode(message))
        except OSError:
            self.loop.drop(self)

    def readable(self) -> None:
        try:
            data = self.sock.recv(LINE_LIMIT)
            if not data:
                raise Disconnected("closed")
            for message in self._lines.feed(data):
                answer = self.handle(message)
                if answer is not None:
                    self.send(answer)
        except BlockingIOError:
            return
        except (OSError, Disconnected, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, (OSError, Disconnected)):
                log.warning("process %d sent an invalid request: %r", self.pid, error)
            self.loop.drop(self)


class DriverLoop:
    """Calls `Connection.readable` and `Connection.gone`, all in the thread of `run`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pidfds: dict[Connection, int] = {}
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector.register(self._stop_reader, selectors.EVENT_READ, None)

    def listen(self, path: str, mode: int, accept: Callable[[socket.socket], Connection]) -> None:
        """Accepts at `path`, which exists from the moment on at which it can be connected to."""
        new = Path(f"{path}.new")
        new.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(new))
        new.chmod(mode)
        listener.listen(128)
        listener.setblocking(False)
        new.rename(path)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, accept))

    def _accept(self, listener: socket.socket, accept: Callable[[socket.socket], Connection]) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        connection = accept(sock)
        self._selector.register(sock, selectors.EVENT_READ, connection.readable)
        self._watch_process(connection)

    def _watch_process(self, connection: Connection) -> None:
        """Watch for the death of the process: a forked child would keep its parent's connection open."""
        try:
            pidfd = os.pidfd_open(connection.pid)
        except OSError:  # outside our PID namespace, or gone already: then the connection closes
            return
        self._pidfds[connection] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self.drop(connection))

    def drop(self, connection: Connection) -> None:
        """Forget a connection; its contexts end."""
        if connection.sock.fileno() < 0:
            return
        self._selector.unregister(connection.sock)
        connection.sock.close()
        pidfd = self._pidfds.pop(connection, None)
        if pidfd is not None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
        connection.gone()

    def run(self) -> None:
        """Runs until `stop`."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                # An earlier callback of this round may have dropped the connection of a later one.
                if key.fd in self._selector.get_map():
                    key.data()

    def stop(self) -> None:
        """May be called from any thread or signal handler."""
        self._stop_writer.send(b"x")
