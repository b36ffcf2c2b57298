"""The simulated control daemon, once it listens.

It answers commands, starts the server for the first client or on start_server, and passes clients' connections to the
server. It does one thing at a time (measured): a command to a stopped server hangs the daemon and all later commands,
and the command after start_server is answered once the server is up or has failed. If any signal ends the daemon, the
server and its clients end too (806). An idle daemon sleeps in select().
"""

import contextlib
import os
import select
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from gpushare.mps.attach_protocol import (
    CLIENT_SOCKET,
    END_OF_COMMAND,
    GREETING,
    ProtocolError,
    Request,
    answer_messages,
    check_credentials,
    parse_request,
)
from gpushare.simulation import bin_dir
from gpushare.simulation.control.commands import DaemonSettings, answer
from gpushare.simulation.control.mps_log import MpsLog
from gpushare.simulation.control.server_process import ServerGoneError, ServerProcess
from gpushare.simulation.wire import LINE_LIMIT, peer

SERVER_PROGRAM = "nvidia-cuda-mps-server"
FIRST_QUIT_WAIT = 0.2
END_SECONDS = 1.0
"""The time for the end of a command that has come already."""


class ControlConnection:
    """A connection to one of the two sockets. `request`: None until the peer has said what it wants."""

    def __init__(self, sock: socket.socket, privileged: bool, namespace: str = "") -> None:
        """`namespace`: whose socket it came through, in MPS v3."""
        self.sock = sock
        self.namespace = namespace
        self.privileged = privileged
        self.pid, self.uid = peer(sock)
        self.presented = False
        self.request: Request | None = None
        self.said_all = False
        """The last message was the end of a command."""


class ControlDaemon:
    def __init__(self, pipe: str, log_directory: str | None, multiuser: bool) -> None:
        """`log_directory` None: log to standard error."""
        self.settings = DaemonSettings()
        self._pipe = pipe
        self._log_directory = log_directory
        self._multiuser = multiuser
        self._log = MpsLog(log_directory, "control.log", "Control")
        self._selector = selectors.DefaultSelector()
        self._server: ServerProcess | None = None
        self._pending: list[ControlConnection] = []
        self._stop_when_idle = False
        self._quit_at: float | None = None
        self._quit_wait = FIRST_QUIT_WAIT
        self._quitting: list[ControlConnection] = []
        self._kill_at: float | None = None

    # The protocol commands.Daemon

    @property
    def server_pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def log(self, text: str) -> None:
        self._log.write(text)

    def ask_server(self, message: dict[str, Any]) -> dict[str, Any]:
        """The server's answer, without a time limit. Raises ServerGoneError if the server has ended."""
        if self._server is None:
            raise ServerGoneError
        return self._server.ask(message, self._on_server_event)

    def start_server(self, uid: int) -> None:
        """No-op while a server runs."""
        if self._server is not None:
            return
        program = str(bin_dir() / SERVER_PROGRAM)
        self._server = ServerProcess(
            [sys.executable, "-SEs", program, *(["-multiuser-server"] if self._multiuser else [])],
            uid,
            {
                "threads": self.settings.threads,
                "memory": self.settings.memory,
                "priority": self.settings.priority,
                "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "log_directory": self._log_directory,
                "pipe_directory": self._pipe,
            },
        )
        self.log(f"Starting new server {self._server.pid} for user {uid}")
        self._selector.register(self._server, selectors.EVENT_READ, self._server_readable)

    def stop_server(self, when_idle: bool = False) -> None:
        """End the server now, or with its last client."""
        if self._server is None:
            return
        if when_idle:
            self._stop_when_idle = True
        else:
            self._forget_server(self._server.end())

    # The loop

    def run(self, listeners: dict[socket.socket, bool]) -> None:
        """Serve `listeners` (socket -> privileged) until quit."""
        for listener, privileged in listeners.items():
            self._selector.register(listener, selectors.EVENT_READ, self._acceptor(listener, privileged))
        while True:
            timers = [timer for timer in (self._quit_at, self._kill_at) if timer is not None]
            timeout = max(0.0, min(timers) - time.monotonic()) if timers else None
            for key, _ in self._selector.select(timeout):
                with contextlib.suppress(ServerGoneError):
                    key.data()
            if self._quit_now():
                self._answer_quitting()
                return

    def end(self) -> None:
        self.stop_server()
        self.log("Exiting")

    def _acceptor(self, listener: socket.socket, privileged: bool, namespace: str = "") -> Callable[[], None]:
        def accept() -> None:
            sock, _ = listener.accept()
            self.log("Accepting connection...")
            sock.setblocking(False)
            connection = ControlConnection(sock, privileged, namespace)
            with contextlib.suppress(OSError):
                sock.send(GREETING)
                # It waits for the first word, and answers nobody meanwhile (measured).
                select.select([sock], [], [])
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._connection_readable(connection))

        return accept

    def _connection_readable(self, connection: ControlConnection) -> None:
        """Each packet is a message: credentials, the request, then a command or a client's farewell."""
        try:
            data = connection.sock.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if not connection.presented:
                self.log("User did not send valid credentials")
            self._close(connection)
            return
        connection.said_all = data == END_OF_COMMAND
        try:
            if not connection.presented:
                check_credentials(data)
                connection.presented = True
            elif connection.request is None:
                connection.request = parse_request(data)
                if connection.request is Request.ATTACH:
                    self._new_client(connection)
            elif connection.request is Request.COMMAND and data.endswith(b"\n\0"):  # neither its length nor its end
                self._command(connection, data.removesuffix(b"\n\0").decode(errors="replace"))
        except ProtocolError:
            self._close(connection)

    def _close(self, connection: ControlConnection) -> None:
        self._pending = [waiting for waiting in self._pending if waiting is not connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _command(self, connection: ControlConnection, line: str) -> None:
        if not line.split():
            return
        if self._quits(connection, line.split()):
            return
        self.log("NEW UI")
        self.log(f"Cmd:{line}")
        self._server_readable()
        try:
            self._await_server()
            text = self._text(connection, line)
        except ServerGoneError:
            self._server_gone()
            text = self._text(connection, line)
        for shown in text.splitlines():
            self.log(shown)
        self.log("UI closed")
        _answer(connection, text)

    def _text(self, connection: ControlConnection, line: str) -> str:
        return answer(self, line, connection.privileged, connection.uid)

    def _quits(self, connection: ControlConnection, words: list[str]) -> bool:
        """Tells whether the command is to end the daemon, which has begun then."""
        if words[0] != "quit" or not connection.privileged:
            return False
        self._quit(connection, words)
        return True

    def _await_server(self) -> None:
        """Waits for the server; the daemon answers nothing meanwhile."""
        while self._server is not None and not self._server.ready:
            self._on_server_event(self._server.receive())

    # Clients

    def _new_client(self, connection: ControlConnection) -> None:
        self._pending.append(connection)
        who = f"NEW CLIENT {connection.pid} from user {connection.uid}"
        if self._server is None:
            self.log(f"{who}: Server is not ready, push client to pending list")
            self.start_server(0 if self._multiuser else connection.uid)
        else:
            self.log(f"{who}: Server already exists")
        self._serve_pending()

    def _serve_pending(self) -> None:
        """Connect all waiting clients with the server; in single-user mode only those of the server's user."""
        if self._server is None or not self._server.ready or self._quit_at is not None:
            return
        served = [waiting for waiting in self._pending if self._multiuser or waiting.uid == self._server.uid]
        self._pending = [waiting for waiting in self._pending if waiting not in served]
        for connection in served:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # The server takes a client's PID from this socket, since a broker may have asked for it (measured).
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._server.hand_over({"op": "client", **self._handed(connection)}, ours)
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(connection.sock, [CLIENT_SOCKET], [theirs.fileno()])
                # It waits for the client's answer, and answers nobody meanwhile (measured).
                select.select([connection.sock], [], [])
            self.log(f"CLIENT {connection.pid} of user {connection.uid} is now connected to server {self._server.pid}")

    def _handed(self, _: ControlConnection) -> dict[str, Any]:
        """What the server is told of a client."""
        return {}

    def _idle(self) -> None:
        """The server has no client left. If another user's clients wait, they get a server of their own."""
        if self._server is not None and (self._stop_when_idle or (self._pending and not self._multiuser)):
            self.log(f"Shutting down server of user {self._server.uid}")
            self.stop_server()

    # The server

    def _server_readable(self) -> None:
        server = self._server
        if server is None:
            return
        try:
            self._on_server_event(server.receive(socket.MSG_DONTWAIT))
        except BlockingIOError:  # a command has read the event while it waited for its answer
            return
        except ServerGoneError:
            self._server_gone()

    def _on_server_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready" and self._server is not None:
            self._server.ready = True
            self.log(f"NEW SERVER {self._server.pid}: Ready")
            self._serve_pending()
        elif event["event"] == "gone":
            self.log(f"Client {event['pid']} disconnected")
            if event["left"] == 0:
                self._idle()

    def _server_gone(self) -> None:
        if self._server is not None:
            self._forget_server(self._server.reap(), was_ready=self._server.ready)

    def _forget_server(self, code: int, was_ready: bool = True) -> None:
        assert self._server is not None  # noqa: S101 - narrows for the type checker
        self._selector.unregister(self._server)
        if not was_ready:
            self.log("Server encountered a fatal exception. Shutting down")
        self.log(f"Server {self._server.pid} exited with status {code}")
        self._server = None
        self._stop_when_idle = False
        if not was_ready:
            # Waiting clients would start the same failing server for ever: refuse them.
            for connection in list(self._pending):
                self._close(connection)
        elif self._pending and self._quit_at is None:
            self.start_server(0 if self._multiuser else self._pending[0].uid)

    # quit

    def _quit(self, connection: ControlConnection, words: list[str]) -> None:
        """Wait for the clients to end, first 200 ms, then twice as long each time; `-t N` ends them after N seconds."""
        self.log("Quit requested")
        self._quitting.append(connection)
        self._quit_at = time.monotonic()
        if "-t" in words[1:-1]:
            with contextlib.suppress(ValueError):
                self._kill_at = time.monotonic() + float(words[words.index("-t") + 1])

    def _quit_now(self) -> bool:
        if self._quit_at is None:
            return False
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        if time.monotonic() < self._quit_at:
            return False
        try:
            if self._server is None or not self.ask_server({"op": "clients"})["clients"]:
                return True
        except ServerGoneError:
            return True
        self._quit_at = time.monotonic() + self._quit_wait
        self._quit_wait *= 2
        return False

    def _answer_quitting(self) -> None:
        for connection in self._quitting:
            if not connection.said_all and select.select([connection.sock], [], [], END_SECONDS)[0]:
                self._connection_readable(connection)  # who is still sending would lose the answer
            _answer(connection, "")


def _answer(connection: ControlConnection, text: str) -> None:
    with contextlib.suppress(OSError):
        for message in answer_messages(text):
            connection.sock.send(message)
