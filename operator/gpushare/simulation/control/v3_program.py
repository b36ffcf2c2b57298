"""nvidia-cuda-mps-control of MPS v3: `-p 3 -f -m` is the daemon, `-p 3 MODULE VERB …` one command to it.

A stand-in that is held to NVIDIA's documentation (docs/mps.md names its pages) and untested on hardware. What the
documentation leaves open is assumed, and marked so. Only a simulated driver of release 615 or later has it.
"""

import sys
from _socket import AF_UNIX, SOCK_SEQPACKET
from _socket import socket as Socket
from itertools import pairwise

from gpushare.simulation.control.program import CHUNK, COMMAND, CREDENTIALS, END_OF_ANSWER, TEXT_AT
from gpushare.simulation.paths import directory, driver_socket, pipe_directory

FIRST_DRIVER = 615
MODULES = ("server", "namespace", "client", "device")
"""The documented modules that this stand-in has."""
HELP = """Usage: nvidia-cuda-mps-control [options] | <module> <verb> [arguments]
This is gpushare's stand-in for MPS v3: held to NVIDIA's documentation, untested on hardware.

Options:
  -h, --help              Print this message.
  -d, --daemon            Setup the daemon in the background.
  -f, --foreground        Setup the daemon in the foreground.
  -m, --multiuser         Enable multiuser mode.
  -p, --protocol <2|3>    Protocol 2 (legacy, default) or 3.
  -q, --quit              Quit and stop the control daemon and all running servers.

Modules:
  server       create delete list set get
  namespace    create delete list set get
  client       list terminate
"""


def is_meant(arguments: list[str], environment: str | None) -> bool:
    """Tells whether these arguments are of protocol 3. The variable comes before the flag (documented). `environment`:
    $CUDA_MPS_PROTOCOL_VERSION.
    """
    return environment == "3" or (environment is None and _flag(arguments) == "3") or arguments[0] in MODULES


def _flag(arguments: list[str]) -> str | None:
    return next((value for flag, value in pairwise(arguments) if flag in ("-p", "--protocol")), None)


def main(arguments: list[str], uid: int) -> int:
    """The exit status, which the documentation does not define: 1 for whatever is refused (assumed)."""
    at = next((index for index, word in enumerate(arguments) if word in ("-p", "--protocol")), None)
    words = arguments if at is None else arguments[:at] + arguments[at + 2 :]
    options = set(words)
    if options & {"-h", "--help", "-d", "--daemon", "-f", "--foreground"} and not _driver_has_it():
        print(f"Invalid argument: {arguments[0]}")
        return 1
    if options & {"-h", "--help"}:
        print(HELP)
        return 0
    if options & {"-d", "--daemon", "-f", "--foreground"}:
        return _become_daemon(options, uid)
    return _command(["quit"] if options & {"-q", "--quit"} else words)


def _become_daemon(options: set[str], uid: int) -> int:
    from gpushare.simulation.control.start import become
    from gpushare.simulation.control.v3_daemon import ControlDaemonV3

    multiuser = bool(options & {"-m", "--multiuser"})
    if multiuser and uid != 0:
        print("Only root user may enable multiuser mode!")  # assumed, as in v2
        return 1
    return become(ControlDaemonV3, bool(options & {"-d", "--daemon"}), multiuser)


def _command(words: list[str]) -> int:
    connection = Socket(AF_UNIX, SOCK_SEQPACKET)
    answer = b""
    try:
        connection.connect(f"{pipe_directory()}/control")
        connection.recv(CHUNK)
        text = "\x1f".join(words).encode() + b"\n\0"
        for message in (CREDENTIALS, COMMAND, len(text).to_bytes(8, "little"), text, bytes(8)):
            connection.send(message)
        while (data := connection.recv(CHUNK)) != END_OF_ANSWER:
            if not data:
                return 1
            answer += data[TEXT_AT:] + b"\n"
    except OSError:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    sys.stdout.write(answer.decode())
    return 1 if answer.startswith(b"Error") else 0


def _driver_has_it() -> bool:
    """Asks the driver's own socket, which root alone may ask."""
    import json

    from gpushare.simulation.wire import Disconnected, connect

    try:
        with connect(driver_socket(directory()), 5.0) as sock:
            sock.sendall(json.dumps({"op": "info"}).encode() + b"\n")
            version = str(json.loads(sock.recv(CHUNK))["driver_version"])
    except (OSError, ValueError, KeyError, Disconnected):
        return False
    return int(version.partition(".")[0]) >= FIRST_DRIVER
