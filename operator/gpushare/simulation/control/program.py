"""nvidia-cuda-mps-control without arguments, the control program: sends each line of standard input to the daemon.

It imports next to nothing, because a supervisor starts it every few seconds. The exit code is 1 if there is no daemon
or the daemon ends instead of answering, and 0 otherwise, for errors too.
"""

import sys
from _socket import AF_UNIX, SOCK_SEQPACKET  # `socket` itself doubles the start-up time
from _socket import socket as Socket

from gpushare.simulation.paths import pipe_directory

CREDENTIALS, COMMAND = b"OUTBCRED\0", b"\4\0\0\0"
END_OF_ANSWER = b"\1\0\0\0\0\0\0\0"
TEXT_AT = 4
CHUNK = 65536


def main() -> int:
    connection = _connect(pipe_directory())
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
    """Connects to the privileged socket if possible, because only it may change settings; else to the clients'
    socket."""
    for name in ("control_privileged", "control"):
        connection = Socket(AF_UNIX, SOCK_SEQPACKET)
        try:
            connection.connect(f"{pipe}/{name}")
            if connection.recv(CHUNK):
                connection.send(CREDENTIALS)
                connection.send(COMMAND)
                return connection
        except OSError:
            connection.close()
    return None


def _ask(connection: Socket, command: str) -> str | None:
    """The daemon's answer, without a time limit. None if the daemon ends instead of answering."""
    answer = b""
    try:
        text = command.encode() + b"\n\0"
        for message in (len(text).to_bytes(8, "little"), text, bytes(8)):
            connection.send(message)
        while (data := connection.recv(CHUNK)) != END_OF_ANSWER:
            if not data:
                return None
            answer += data[TEXT_AT:] + b"\n"
    except OSError:
        return None
    return answer.decode()
