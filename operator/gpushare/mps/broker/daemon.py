"""The MPS daemon behind the broker: what the broker asks it, without a privilege.

Guarantees: each question has a time limit. A socket that the daemon gives too late is not dropped, which would hang the
server (measured): it is taken and ended properly, in the background. Under protocol v3 no command is sent through a
socket, which NVIDIA documents for the control program alone: the supervisor names the clients.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from gpushare.mps.attach_protocol import (
    CLIENT_SOCKET,
    CREDENTIALS,
    FAREWELL,
    ProtocolError,
    Request,
    answer_text,
    command_messages,
    is_end_of_answer,
    request_message,
)
from gpushare.mps.broker.kept_sockets import UnderWay
from gpushare.mps.control import context_counts
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.packets import comes_soon, plain, receive, receive_now, send
from gpushare.mps.wire import QueuedKind, QueuedSocket, ServedClients

DAEMON_SECONDS = 5.0
"""It answers within a millisecond, unless it is wedged, its server has faulted, or the server waits for a client."""

RETRY_SECONDS = 0.05
HANG_UP_SECONDS = 0.2
"""20 ms were enough in each of 48 tries on an H100."""


class BrokeredDaemon:
    """The MPS daemon of one GPU."""

    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._late: set[asyncio.Task[ServerSocket]] = set()

    async def greeting(self) -> bytes:
        """The greeting that a silent connection gets. OSError, ProtocolError, TimeoutError."""
        async with asyncio.timeout(DAEMON_SECONDS):
            with await self._connect() as sock:
                return await _greeting(sock)

    async def contexts(self) -> dict[int, int]:
        """How many contexts each client has, by PID; under protocol v3 one each. OSError, ProtocolError,
        TimeoutError.
        """
        served = self._served()
        if served is not None:
            return dict.fromkeys(served, 1)
        async with asyncio.timeout(DAEMON_SECONDS):
            return context_counts(await self._ask("get_device_client_list"))

    def _served(self) -> list[int] | None:
        """The clients of a daemon of protocol v3, at most some seconds ago. ProtocolError: that cannot be read."""
        read = read_model(self._gpu.clients, ServedClients)
        if read.absent:
            return None
        if read.value is None:
            raise ProtocolError(read.reason)
        return read.value.pids

    async def until_free(self, server: int) -> None:
        """Returns once the server answers: it does not while it waits for a client. Without a time limit."""
        while True:
            try:
                await self._ask(f"get_server_status {server}")
                return
            except (OSError, ProtocolError):  # such as one that hangs up while it recovers
                await asyncio.sleep(RETRY_SECONDS)

    async def client_socket(self, wanted: QueuedSocket, under_way: UnderWay) -> "ServerSocket":
        """A client's socket to the server, which the server now waits for; of the namespace that `wanted` names, if
        any. From before it is asked for until it is closed it is in the queue, too. OSError, ProtocolError,
        TimeoutError.
        """
        async with asyncio.timeout(DAEMON_SECONDS):
            sock = await self._connect(wanted.namespace)
            with _closed_on_error(sock):
                await _greeting(sock)
                await send(sock, CREDENTIALS)
                asked = under_way.put(sock, replace(wanted, kind=QueuedKind.ASKED))
                await send(sock, request_message(Request.ATTACH))
        # Nothing waits from here on to where the socket is, or is taken by a task of its own: it must not get lost.
        taking = _client_socket(sock, wanted, under_way, asked)
        if comes_soon(sock):
            return await taking
        task = asyncio.create_task(taking)
        try:
            async with asyncio.timeout(DAEMON_SECONDS):
                return await asyncio.shield(task)
        except (TimeoutError, asyncio.CancelledError):
            self._late.add(task)
            task.add_done_callback(self._end_late)
            raise

    async def end_asked(self, sock: socket.socket) -> None:
        """Ends the part of a client for whom an earlier broker asked for a socket, and who never got it."""
        with suppress(OSError, ProtocolError, TimeoutError):
            async with asyncio.timeout(DAEMON_SECONDS):
                with await _client_socket(sock, QueuedSocket(kind=QueuedKind.PASSED), UnderWay(), 0) as passed:
                    passed.speak_for_client()

    def _end_late(self, task: "asyncio.Task[ServerSocket]") -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is None:
            with task.result() as passed:
                passed.speak_for_client()

    async def _ask(self, command: str) -> str:
        """The answer to a command that needs no privilege."""
        with await self._connect() as sock:
            await _greeting(sock)
            for message in (CREDENTIALS, request_message(Request.COMMAND), *command_messages(command)):
                await send(sock, message)
            received: list[bytes] = []
            while not (received and is_end_of_answer(received[-1])):
                received.append(await plain(sock))
                if not received[-1]:
                    raise ProtocolError("the MPS daemon hung up in the midst of its answer")
            return answer_text(received[:-1])

    async def _connect(self, namespace: str = "") -> socket.socket:
        """Connects; connect(2) on this kind of socket either succeeds at once or fails."""
        with _closed_on_error(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as sock:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(str(self._gpu.client / namespace if namespace else self._gpu.client_control))
                    return sock
                except BlockingIOError:  # its backlog is full
                    await asyncio.sleep(0.05)


class ServerSocket:
    """A client's socket to the MPS server, with its number in the queue. To be closed; where that is by a cancellation,
    the next broker has it.
    """

    def __init__(self, sock: socket.socket, under_way: UnderWay, number: int) -> None:
        self._sock = sock
        self._under_way = under_way
        self._number = number
        self._kept: socket.socket | None = None

    @property
    def inode(self) -> int:
        return os.fstat(self._sock.fileno()).st_ino

    def fileno(self) -> int:
        return self._sock.fileno()

    def speak_for_client(self) -> None:
        """Ends the client's part in its place: the server waits for the rest of what a client says, or for its end.

        Hangs up HANG_UP_SECONDS later, through a copy of the socket, since a server that finds the message and the end
        at the same moment can hang (measured).
        """
        self._kept = self._sock.dup()
        self._kept.setblocking(False)
        with suppress(OSError):
            self._kept.send(CREDENTIALS)
        asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self._hang_up, self._kept)

    def _hang_up(self, kept: socket.socket) -> None:
        with kept, suppress(OSError):
            kept.shutdown(socket.SHUT_RDWR)
        self._under_way.take_out(self._number)

    def __enter__(self) -> "ServerSocket":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._kept is None and not (kind is not None and issubclass(kind, asyncio.CancelledError)):
            self._under_way.take_out(self._number)
        self._sock.close()


@contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[socket.socket]:
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


async def _client_socket(sock: socket.socket, wanted: QueuedSocket, under_way: UnderWay, asked: int) -> ServerSocket:
    """The socket that the daemon passes over `sock`, which is closed and taken out of the queue: `asked`."""
    try:
        with sock:
            packet = await receive(sock, peek=True)  # it stays there, for the next broker, until it is in the queue
            if packet.data != CLIENT_SOCKET or len(packet.descriptors) != 1:
                packet.close()
                raise ProtocolError(f"the MPS daemon answers an attach with {packet.data[:16]!r}")
            passed = socket.socket(fileno=packet.descriptors[0])
            number = under_way.put(passed, replace(wanted, kind=QueuedKind.PASSED))
            receive_now(sock).close()  # an end with something unread would keep what follows from the daemon
            with suppress(OSError):  # the client's answer, which the daemon waits for
                await send(sock, FAREWELL)
            under_way.take_out(asked)
            return ServerSocket(passed, under_way, number)
    except (OSError, ProtocolError):
        under_way.take_out(asked)
        raise


async def _greeting(sock: socket.socket) -> bytes:
    comes_soon(sock)
    greeting = await plain(sock)
    if not greeting:
        raise ProtocolError("the MPS daemon hung up without a greeting")
    return greeting
