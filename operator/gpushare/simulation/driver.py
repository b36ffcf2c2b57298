"""The simulated driver: one process that owns GPUs, compute modes, contexts and kernels in flight.

A context lives as long as the connection that opened it: the end of the process is the end of the context, and what
that does to the neighbours is decided in `fate`. State is in memory alone, so a restart of this process is what the
reload of a driver is: every context is gone and every compute mode is back to Default.
Never polls: idle it sleeps in select().
"""

import logging
import os
import selectors
import signal
import socket
import time
import uuid as uuids
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.simulation import paths
from gpushare.simulation.gpu import SimulatedGpu
from gpushare.simulation.wire import LINE_LIMIT, Disconnected, Lines, Message, encode, peer

log = logging.getLogger(__name__)
XIDS_KEPT = 1000


SERVER_INIT_MS = 272.0
CLIENT_INIT_MS = 100.0


@dataclass(slots=True)
class Delays:
    """How long start-up takes, in milliseconds; the defaults are measured on an H200."""

    server_init_ms: float = SERVER_INIT_MS
    client_init_ms: float = CLIENT_INIT_MS


@dataclass(slots=True)
class State:
    gpus: list[SimulatedGpu]
    driver_version: str
    cuda_version: str
    delays: Delays = field(default_factory=Delays)
    xids: list[Message] = field(default_factory=list)
    xids_total: int = 0
    wedged: set[str] = field(default_factory=set)

    def gpu(self, uuid: str) -> SimulatedGpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def record_xid(self, gpu: SimulatedGpu, number: int, pid: int) -> None:
        """The kernel log's line; it names the victim, not the culprit. Bounded."""
        log.info("NVRM: Xid (%s): %d, pid=%d", gpu.uuid, number, pid)
        self.xids.append({"uuid": gpu.uuid, "xid": number, "pid": pid})
        self.xids_total += 1
        del self.xids[:-XIDS_KEPT]


def make_gpus(node: str, count: int, product: str, sms: int, memory_mib: int) -> list[SimulatedGpu]:
    """GPUs whose UUIDs are the same after every start on the same node."""
    return [
        SimulatedGpu(
            f"GPU-{uuids.uuid5(uuids.NAMESPACE_URL, f'gpushare:{node}:{index}')}",
            index,
            index,
            product,
            sms,
            memory_mib,
        )
        for index in range(count)
    ]


class Connection:
    """One accepted connection; a subclass answers its messages in `handle` and cleans up in `gone`."""

    def __init__(self, loop: "Loop", sock: socket.socket) -> None:
        self.loop = loop
        self.sock = sock
        self.pid, self.uid = peer(sock)
        self._lines = Lines()

    def handle(self, message: Message) -> Message | None:
        raise NotImplementedError

    def gone(self) -> None:
        """The peer closed or died."""

    def send(self, message: Message) -> None:
        # A peer that does not read must not stop the driver: its buffer is full only after thousands of messages.
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
                log.warning("process %d sent what is no request: %r", self.pid, error)
            self.loop.drop(self)


class Loop:
    """select() over listeners, connections, and the processes behind them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pidfds: dict[Connection, int] = {}
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector.register(self._stop_reader, selectors.EVENT_READ, None)

    def listen(self, path: str, mode: int, accept: Callable[[socket.socket], Connection]) -> None:
        Path(path).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        Path(path).chmod(mode)
        listener.listen(128)
        listener.setblocking(False)
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
        """A forked child keeps its parent's connection open, so the parent's death is watched by itself."""
        try:
            pidfd = os.pidfd_open(connection.pid)
        except OSError:  # a process outside our PID namespace, or gone already: its connection tells
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
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                # An earlier callback of this round may have dropped the connection of a later one.
                if key.fd in self._selector.get_map():
                    key.data()

    def stop(self) -> None:
        """From any thread or signal handler."""
        self._stop_writer.send(b"x")


def now() -> float:
    return time.monotonic()


def serve(state: State, base: str, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT; the sockets are removed then."""
    from gpushare.simulation.admin import AdminConnection
    from gpushare.simulation.device import Device

    loop = Loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    directory = Path(base)
    (directory / "dev").mkdir(parents=True, exist_ok=True)
    sockets = [paths.driver_socket(base), *(paths.device_node(base, gpu.minor) for gpu in state.gpus)]
    for stale in set(paths.device_nodes(base)) - set(sockets):
        Path(stale).unlink()
    loop.listen(sockets[0], 0o600, lambda sock: AdminConnection(loop, sock, state))
    for gpu, path in zip(state.gpus, sockets[1:], strict=True):
        loop.listen(path, 0o666, Device(loop, state, gpu).accept)
    log.info("simulated driver %s: %d GPUs in %s", state.driver_version, len(state.gpus), base)
    ready()
    try:
        loop.run()
    finally:
        for path in sockets:
            Path(path).unlink(missing_ok=True)
