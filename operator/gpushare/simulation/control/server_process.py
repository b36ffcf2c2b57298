"""The control daemon's side of its MPS server: a process, reached through a packet socket.

A request waits without a time limit, as in the real control daemon: a stopped server hangs it.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

ENV_DESCRIPTOR = "GPUSHARE_SIMULATION_SERVER_FD"
PACKET_LIMIT = 256 * 1024


class ServerGoneError(Exception):
    """The server process has ended."""


class ServerProcess:
    def __init__(self, program: list[str], uid: int, settings: dict[str, Any]) -> None:
        """`settings`: threads, memory, priority, visible, log_directory (None: stderr), pipe_directory."""
        self.uid = uid
        self.ready = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock = ours
        theirs.set_inheritable(True)
        environment = {**os.environ, ENV_DESCRIPTOR: str(theirs.fileno())}
        self.pid = os.posix_spawn(program[0], program, environment)
        theirs.close()
        self._send({"op": "configure", "uid": uid, **settings})

    def fileno(self) -> int:
        return self._sock.fileno()

    def ask(self, message: dict[str, Any], on_event: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        self._send(message)
        while True:
            answer = self.receive()
            if "event" not in answer:
                return answer
            on_event(answer)

    def receive(self, flags: int = 0) -> dict[str, Any]:
        try:
            data = self._sock.recv(PACKET_LIMIT, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ServerGoneError from error
        if not data:
            raise ServerGoneError
        message: dict[str, Any] = json.loads(data)
        return message

    def hand_over(self, message: dict[str, Any], connection: socket.socket) -> None:
        """Pass a client's connection to the server and close our copy."""
        try:
            socket.send_fds(self._sock, [json.dumps(message).encode()], [connection.fileno()])
        except OSError as error:
            raise ServerGoneError from error
        finally:
            connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._sock.send(json.dumps(message).encode())
        except OSError as error:
            raise ServerGoneError from error

    def end(self) -> int:
        """Kill the server, stopped or not. Returns its exit code: negative for a signal."""
        os.kill(self.pid, signal.SIGKILL)
        return self.reap()

    def reap(self) -> int:
        self._sock.close()
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)
