"""What is said on an MPS daemon's socket `control`, as far as the broker must understand it. Pure, stdlib alone.

Measured on driver 580 (protocol v2). The socket is of type SEQPACKET, so every message arrives whole:

1. The daemon greets at each accept: `OUTBHELL` and a NUL.
2. The peer sends `OUTBCRED` and a NUL, then four bytes: 2 (little-endian) to attach as a client, 4 to send commands.
3. The daemon answers an attaching client with `OUTBCUFD` and a NUL, and one descriptor: a socket to the MPS server. The
   client sends four zero bytes and closes the connection.

CUDA connects once to see whether a daemon is there, and hangs up, then once for each process and once for each context.
"""

from enum import IntEnum

GREETING = b"OUTBHELL\0"
"""By driver 580; the broker repeats whatever greeting its daemon has."""
CREDENTIALS = b"OUTBCRED\0"
CLIENT_SOCKET = b"OUTBCUFD\0"
MAX_MESSAGE_BYTES = 4096
"""No message of an attach has more than 9 bytes."""


class Request(IntEnum):
    """What the peer asks for, by the number that it sends."""

    ATTACH = 2
    COMMAND = 4


class ProtocolError(Exception):
    """The peer or the daemon sent something else than the protocol says. The text names what."""


def check_credentials(message: bytes) -> None:
    """Raises ProtocolError unless `message` is what a peer sends first."""
    if message != CREDENTIALS:
        raise ProtocolError(f"its first message is {message[:16]!r}, not {CREDENTIALS!r}")


def parse_request(message: bytes) -> Request:
    """The peer's second message. Raises ProtocolError for every other length or number."""
    if len(message) != 4:
        raise ProtocolError(f"its request has {len(message)} bytes, not 4")
    number = int.from_bytes(message, "little")
    try:
        return Request(number)
    except ValueError:
        raise ProtocolError(f"its request is {number}, neither 2 (attach) nor 4 (commands)") from None
