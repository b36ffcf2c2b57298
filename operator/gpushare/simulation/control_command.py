"""nvidia-cuda-mps-control: the command line. Sends commands from standard input to the daemon, or becomes the daemon.

Imports next to nothing, since a supervisor starts it every few seconds. It exits with 1 without a daemon, and when the
daemon ends instead of answering; every other outcome, errors included, is exit code 0.
"""

import os
import sys
from _socket import AF_UNIX, SOCK_STREAM  # `socket` itself doubles the start-up time
from _socket import socket as Socket

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default
END_OF_ANSWER = b"\0"
CHUNK = 65536


def main(arguments: list[str]) -> int:
    if arguments:
        from gpushare.simulation.control_start import start

        return start(arguments)
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY
    connection = _connect(pipe)
    if connection is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    for line in sys.stdin:
        answer = _ask(connection, line.strip()) if line.strip() else ""
        if answer is None:
            return 1
        sys.stdout.write(answer)
        sys.stdout.flush()
    return 0


def _connect(pipe: str) -> Socket | None:
    """The privileged socket where it can be reached, since only it may change anything, else the clients' one."""
    for name in ("control_privileged", "control"):
        connection = Socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.connect(f"{pipe}/{name}")
        except OSError:
            connection.close()
        else:
            return connection
    return None


def _ask(connection: Socket, command: str) -> str | None:
    """The daemon's answer; waits for as long as the daemon does. None when the daemon ends instead of answering."""
    answer = b""
    try:
        connection.sendall(command.encode() + b"\n")
        while not answer.endswith(END_OF_ANSWER):
            data = connection.recv(CHUNK)
            if not data:
                return None
            answer += data
    except OSError:
        return None
    return answer.rstrip(END_OF_ANSWER).decode()
