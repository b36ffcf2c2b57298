"""An MPS daemon's side of the socket `control`, as measured on driver 580, for the tests of the broker."""

import errno
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpushare.mps.control import ControlCommands

GREETING, CREDENTIALS, CLIENT_SOCKET = b"OUTBHELL\0", b"OUTBCRED\0", b"OUTBCUFD\0"
ATTACH, COMMAND = b"\x02\0\0\0", b"\x04\0\0\0"
END_OF_ANSWER = b"\x01" + bytes(7)
HELLO = b"hello from the server"
SERVER = 4711
AT_ONCE_MS = 20


class FakeDaemon:
    """Serves until `close`. `heard`: the messages of each connection, in the order of the connections. `passed`: how
    many sockets it gave. `hangs_up_at_attaches`: at how many of the next ones, as a daemon that ends.
    `before_answering`: called with each command.

    It passes an attaching client one end of a socket pair. Until a message came from there, the server answers nobody;
    where the client's end is closed or shut down before, or in the same moment, it never does again. (The real one was
    hung by the same moment in 2 of 36 tries.)
    """

    def __init__(self, path: Path, greeting: bytes = GREETING) -> None:
        self.heard: list[list[bytes]] = []
        self.uids: list[int] = []
        self.commands: list[str] = []
        self.before_answering: Callable[[str], None] = lambda _: None
        self.clients: list[int] = []
        self.passed = 0
        self.gives_sockets = threading.Event()
        self.gives_sockets.set()
        self.hangs_up_at_attaches = 0
        self._server_free = threading.Event()
        self._server_free.set()
        self._hung_for_good = False
        self._greeting = greeting
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def attaches(self) -> int:
        return sum(ATTACH in heard for heard in self.heard)

    @property
    def hung(self) -> bool:
        return not self._server_free.is_set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno != errno.EMFILE:  # a test took this process' descriptors from the broker
                    return
                time.sleep(0.01)
                continue
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        heard: list[bytes] = []
        self.heard.append(heard)
        with sock, suppress(ConnectionError):
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
                if data == ATTACH and self.hangs_up_at_attaches:
                    self.hangs_up_at_attaches -= 1
                    return
                if data == ATTACH:
                    self.gives_sockets.wait(10)
                    self._pass_socket(sock)
                elif data.endswith(b"\n\0"):
                    self._answer(sock, data[:-2].decode())

    def _answer(self, sock: socket.socket, command: str) -> None:
        self.commands.append(command)
        self.before_answering(command)
        if command.startswith("get_server_status") and not self._server_free.wait(10):
            return
        if self._hung_for_good:
            time.sleep(10)
            return
        rows = [f"{pid}.{self.clients[:number].count(pid) + 1}" for number, pid in enumerate(self.clients)]
        answers = {"get_server_list": [str(SERVER)], "get_device_client_list": ["[0] 00:00.0, NVIDIA H200", *rows]}
        text = "\n".join(answers.get(command, ()))
        if text:
            sock.send(bytes(4) + text.encode())
        sock.send(END_OF_ANSWER)

    def _pass_socket(self, sock: socket.socket) -> None:
        self._server_free.clear()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=self._await_client, args=(ours,), daemon=True).start()
        with theirs, suppress(BrokenPipeError):  # the broker has given the client up
            socket.send_fds(sock, [CLIENT_SOCKET], [theirs.fileno()])
        self.passed += 1

    def _await_client(self, ours: socket.socket) -> None:
        with ours:
            if not ours.recv(64):
                self._hung_for_good = True
            if self._hung_for_good:
                return
            ending = select.poll()
            ending.register(ours, select.POLLRDHUP)
            if ending.poll(AT_ONCE_MS):
                self._hung_for_good = True
                return
            self._server_free.set()
            with suppress(OSError):
                ours.send(HELLO)


class Commands(ControlCommands):
    """The server's limits, and every change of them."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.sent: list[str] = []

    def run(self, *commands: str, seconds: float | None = None) -> str:
        if commands == (f"get_server_status {SERVER}",):
            return "ACTIVE"
        self.sent += commands
        return "\n".join(f"{command.split()[2]}.0" if "thread" in command else "" for command in commands)


def connect(path: Path, seconds: float = 60.0) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(seconds)
    sock.connect(str(path))
    return sock


def client_socket(path: Path, seconds: float = 60.0) -> socket.socket | None:
    """What a CUDA process does until it has its socket to the server; None: it is refused."""
    with connect(path, seconds) as sock:
        assert sock.recv(64) == GREETING
        try:
            sock.send(CREDENTIALS)
            sock.send(ATTACH)
            message, descriptors, _, _ = socket.recv_fds(sock, 64, 1)
        except ConnectionError:
            return None
        if not message:
            return None
        assert (message, len(descriptors)) == (CLIENT_SOCKET, 1)
        sock.send(b"\0\0\0\0")
    server = socket.socket(fileno=descriptors[0])
    server.settimeout(seconds)
    return server


def attach(path: Path, seconds: float = 60.0) -> bytes:
    """What a CUDA process does, to the first message of its server; empty: it is refused."""
    server = client_socket(path, seconds)
    if server is None:
        return b""
    with server:
        server.send(CREDENTIALS)
        return server.recv(64)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
