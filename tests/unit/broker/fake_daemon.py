"""An MPS daemon's side of the socket `control`, as measured on driver 580, for the tests of the broker."""

import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

GREETING, CREDENTIALS, CLIENT_SOCKET = b"OUTBHELL\0", b"OUTBCRED\0", b"OUTBCUFD\0"
ATTACH, COMMAND = b"\x02\0\0\0", b"\x04\0\0\0"


class FakeDaemon:
    """Serves until `close`. `heard`: the messages of each connection, in the order of the connections.

    It passes an attaching client one end of a socket pair, on whose other end it has sent `hello from the server`.
    """

    def __init__(self, path: Path, greeting: bytes = GREETING) -> None:
        self.heard: list[list[bytes]] = []
        self.uids: list[int] = []
        self.answers = threading.Event()
        self.answers.set()
        self._greeting = greeting
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        heard: list[bytes] = []
        self.heard.append(heard)
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.send(self._greeting)
            while True:
                data, control, _, _ = sock.recvmsg(256, socket.CMSG_SPACE(12))
                if not data:
                    return
                heard.append(data)
                for level, kind, content in control:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                        self.uids.append(struct.unpack("3i", content)[1])
                if data == ATTACH:
                    self.answers.wait(10)
                    self._pass_socket(sock)

    def _pass_socket(self, sock: socket.socket) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.send(b"hello from the server")
            with suppress(BrokenPipeError):  # the broker has given the client up
                socket.send_fds(sock, [CLIENT_SOCKET], [theirs.fileno()])


def connect(path: Path, seconds: float = 5.0) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(seconds)
    sock.connect(str(path))
    return sock


def attach(path: Path) -> bytes:
    """What a CUDA process does, to the first message of its server."""
    with connect(path) as sock:
        assert sock.recv(64) == GREETING
        sock.send(CREDENTIALS)
        sock.send(ATTACH)
        message, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
        assert (message, len(descriptors)) == (CLIENT_SOCKET, 1)
        sock.send(b"\0\0\0\0")
    with socket.socket(fileno=descriptors[0]) as server:
        return server.recv(64)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
