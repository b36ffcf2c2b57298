"""JSON lines over unix sockets: the simulation's own protocol between clients, MPS servers and the driver.

The driver may send a message with the key `event` at any time. All other messages answer requests, in order.
"""

import json
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
LINE_LIMIT = 64 * 1024


class Disconnected(Exception):
    """The peer is gone, or has sent something that is no message."""


class Lines:
    """Splits received bytes into messages. A line above LINE_LIMIT raises Disconnected: no peer can fill our memory."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            raise Disconnected("line too long")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise Disconnected("not JSON") from error
    if not isinstance(message, dict):
        raise Disconnected("not an object")
    return message


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def peer(sock: socket.socket) -> tuple[int, int]:
    """(PID, UID) of the process that connected. The PID is of our PID namespace, and 0 for a process outside of it."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def receive_with_pid(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """(data, PID of its sender in our PID namespace). The socket has SO_PASSCRED; OSError where no PID came along."""
    data, control, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(12))
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return data, struct.unpack("3i", content)[0]
    raise OSError("a message without credentials")


def connect(path: str, seconds: float | None, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Raises OSError if nobody listens there. Waits where the backlog is full, as CUDA does (measured). `seconds`: the
    time limit of every later operation; None: no limit.
    """
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.connect(path)
        sock.settimeout(seconds)
    except OSError:
        sock.close()
        raise
    return sock


class Channel:
    """The requesting side of a connection. While it waits for an answer, it passes events to `on_event`, in order."""

    def __init__(self, sock: socket.socket, on_event: Callable[[Message], None]) -> None:
        self.sock = sock
        self.on_event = on_event
        self._lines = Lines()
        self._answers: list[Message] = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        try:
            self.sock.sendall(encode(message))
        except OSError as error:
            raise Disconnected(str(error)) from error

    def ask(self, message: Message) -> Message:
        """The answer to `message`. Raises Disconnected if the peer is gone or the socket's time limit is exceeded."""
        self.send(message)
        while not self._answers:
            self.receive()
        return self._answers.pop(0)

    def receive(self) -> None:
        """Wait for bytes, and process the messages in them."""
        try:
            data = self.sock.recv(LINE_LIMIT)
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("closed")
        for message in self._lines.feed(data):
            if "event" in message:
                self.on_event(message)
            else:
                self._answers.append(message)

    def receive_pending(self) -> None:
        """Process the messages that have arrived, without waiting."""
        while select.select([self.sock], [], [], 0)[0]:
            self.receive()

    def close(self) -> None:
        self.sock.close()
