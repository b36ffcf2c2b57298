"""systemd's logind as a kubelet knows it, so that a node without systemd can announce its shutdown.

What the kubelet of Kubernetes 1.37 asks (nodeshutdown/systemd/inhibit_linux.go): how long a shutdown may be delayed, a
lock that delays it, and to be sent the signal PrepareForShutdown. One socket answers for the system bus and for logind,
in the D-Bus protocol, little endian. Nothing shuts down: the lock is a number that is no file descriptor.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SECONDS = 30.0
LONGEST_DELAY_US = 3600 * 10**6
"""More than any kubelet asks for: it would reconfigure logind otherwise."""
NO_DESCRIPTOR = 0x7FFFFFFF

_RETURN, _SIGNAL = 2, 4
_PATH, _INTERFACE, _MEMBER, _REPLY_SERIAL, _SIGNATURE = 1, 2, 3, 5, 8
"""Types of messages and of header fields, as the D-Bus specification numbers them."""
_ANSWERS = {
    "Hello": ("s", struct.pack("<I5s", 4, b":1.1")),
    "AddMatch": ("", b""),
    "Get": ("v", struct.pack("<B2s5xQ", 1, b"t", LONGEST_DELAY_US)),
    "Inhibit": ("u", struct.pack("<I", NO_DESCRIPTOR)),
}
"""The signature and body of the answer, by method. The only property asked for is InhibitDelayMaxUSec."""


class Logind:
    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._watcher: socket.socket | None = None
        self._watched = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def announce_shutdown(self) -> None:
        """Announces a shutdown once a kubelet waits for that. Raises AssertionError where none does within the time."""
        assert self._watched.wait(SECONDS), f"no kubelet watches for a shutdown within {SECONDS:.0f} s"
        assert self._watcher is not None
        fields = [
            _field(_PATH, "o", _text("/org/freedesktop/login1")),
            _field(_INTERFACE, "s", _text("org.freedesktop.login1.Manager")),
            _field(_MEMBER, "s", _text("PrepareForShutdown")),
        ]
        self._watcher.sendall(_message(_SIGNAL, fields, "b", struct.pack("<I", 1)))

    def close(self) -> None:
        self._listener.close()
        if self._watcher is not None:
            self._watcher.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as incoming:
            try:
                while (line := incoming.readline().strip(b"\0\r\n")) != b"BEGIN":
                    if not line:
                        return
                    connection.sendall(_authenticated(line))
                while (call := _read_call(incoming)) is not None:
                    serial, member = call
                    fields = [_field(_REPLY_SERIAL, "u", struct.pack("<I", serial))]
                    connection.sendall(_message(_RETURN, fields, *_ANSWERS[member]))
                    if member == "AddMatch":
                        self._watcher = connection
                        self._watched.set()
            except OSError:
                return


@contextmanager
def logind(path: Path) -> Iterator[Logind]:
    """`path`: of the system bus's socket, as this machine reaches it."""
    path.parent.mkdir(exist_ok=True)
    served = Logind(path)
    try:
        yield served
    finally:
        served.close()
        path.unlink()


def _authenticated(line: bytes) -> bytes:
    if line == b"AUTH":
        return b"REJECTED EXTERNAL\r\n"
    return b"OK 0123456789abcdef0123456789abcdef\r\n" if line.startswith(b"AUTH ") else b"ERROR\r\n"


def _read_call(incoming: BinaryIO) -> tuple[int, str] | None:
    """(serial, method) of the next message; None: the kubelet has gone."""
    head = incoming.read(16)
    if len(head) < 16:
        return None
    _, _, _, _, body, serial, length = struct.unpack("<BBBBIII", head)
    fields = incoming.read(length + -length % 8)
    incoming.read(body)
    return serial, _member(fields[:length])


def _member(fields: bytes) -> str:
    at = 0
    while at < len(fields):
        code, kind = fields[at], chr(fields[at + 2])
        at += 4
        size = {"u": 4, "g": fields[at] + 2}.get(kind) or struct.unpack_from("<I", fields, at)[0] + 5
        if code == _MEMBER:
            return fields[at + 4 : at + size - 1].decode()
        at += size + -(at + size) % 8
    raise ValueError(f"no method is called by {fields!r}")


def _message(kind: int, fields: list[bytes], signature: str, body: bytes) -> bytes:
    if signature:
        fields = [*fields, _field(_SIGNATURE, "g", bytes([len(signature)]) + signature.encode() + b"\0")]
    header = b""
    for field in fields:
        header += bytes(-len(header) % 8) + field
    start = struct.pack("<cBBBIII", b"l", kind, 0, 1, len(body), 1, len(header))
    return start + header + bytes(-len(header) % 8) + body


def _field(code: int, kind: str, value: bytes) -> bytes:
    return struct.pack("<BB2s", code, 1, kind.encode()) + value


def _text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode() + b"\0"
