"""What is said on an MPS daemon's socket `control`, as far as we must understand it. Pure, stdlib alone.

Measured on driver 580 (protocol v2). The socket is of type SEQPACKET, so every message arrives whole:

1. The daemon greets at each accept: `OUTBHELL` and a NUL.
2. The peer sends `OUTBCRED` and a NUL, then four bytes: 2 (little-endian) to attach as a client, 4 to send commands.
3. The daemon answers an attaching client with `OUTBCUFD` and a NUL, and one descriptor: a socket to the MPS server. The
   client sends four zero bytes and closes the connection. On the passed socket it sends `OUTBCRED` and a NUL again.
4. A command is three messages: its length in 8 bytes, the text with a newline and a NUL, 8 zero bytes. The answer is a
   message of four bytes and the text, left out where there is none, and a message of 8 bytes at its end.

Beside these a broker knows requests of our own, which are passed to nobody. STOPPING: the container's preStop hook
(native/pre_stop.c) is run; it has no answer. PAGES and BUSY: a client's pages, and those of others (native/pages.h).
PLACE: a place on the GPU, before the driver is asked for a context (native/place.h); a PlaceAnswer comes at once, then
one at each change of the position, and one a minute. After one whose state is not WAITING the broker hangs up.

CUDA connects once to see whether a daemon is there, and hangs up, then once for each process and once for each context.

The daemon does one thing at a time, and the server does nothing else from the moment that a client's socket is passed
until that client has said who it is: both wait without a time limit. Where a socket is closed or shut down before that,
they wait for ever; any message on it ends the waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

GREETING = b"OUTBHELL\0"
"""The greeting of driver 580; the broker repeats whatever greeting its daemon has."""
CREDENTIALS = b"OUTBCRED\0"
CLIENT_SOCKET = b"OUTBCUFD\0"
FAREWELL = bytes(4)
"""The last packet of an attaching client, once it has its socket."""
MAX_MESSAGE_BYTES = 4096
"""No message of an attach has more than 9 bytes."""
MAX_ANSWER_BYTES = 64 * 1024
END_OF_COMMAND = bytes(8)
END_OF_ANSWER = (1).to_bytes(8, "little")
PLACE_MAGIC, PLACE_VERSION = 0x4C737067, 1
_TEXT_AT = 4
_PLACE = Struct("<6I")


class Request(IntEnum):
    """What the peer asks for, by the number that it sends."""

    ATTACH = 2
    COMMAND = 4
    STOPPING = 0x67700001
    PAGES = 0x67700002
    BUSY = 0x67700003
    PLACE = 0x67700004


class PlaceState(IntEnum):
    """What the broker says to who asks for a place. NOT_NEEDED: there is no queue, or the attach itself will tell.
    GIVEN: the container has a place. REFUSED: it waited too long.
    """

    NOT_NEEDED = 0
    WAITING = 1
    GIVEN = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """`position`: 1 is next. `waiting`: containers in the queue. `places`: that the GPU has."""

    state: PlaceState
    position: int = 0
    waiting: int = 0
    places: int = 0

    def encode(self) -> bytes:
        return _PLACE.pack(PLACE_MAGIC, PLACE_VERSION, self.state, self.position, self.waiting, self.places)


class ProtocolError(Exception):
    """The peer or the daemon sent something else than the protocol says. The text names what."""


def request_message(request: Request) -> bytes:
    return int(request).to_bytes(4, "little")


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
        raise ProtocolError(f"its request is {number}, not 2 (attach), 4 (commands) or our own") from None


def parse_place_answer(message: bytes) -> PlaceAnswer:
    """Raises ProtocolError."""
    if len(message) != _PLACE.size:
        raise ProtocolError(f"the answer about a place has {len(message)} bytes, not {_PLACE.size}")
    magic, version, state, *numbers = _PLACE.unpack(message)
    if (magic, version) != (PLACE_MAGIC, PLACE_VERSION) or state not in list(PlaceState):
        raise ProtocolError(f"the answer about a place is {message!r}")
    return PlaceAnswer(PlaceState(state), *numbers)


def command_messages(command: str) -> tuple[bytes, bytes, bytes]:
    """One command, after the request COMMAND. ValueError: it is not one line."""
    if not command.strip() or "\n" in command or "\0" in command:
        raise ValueError(f"a control command is one line, not {command!r}")
    text = command.encode() + b"\n\0"
    return len(text).to_bytes(8, "little"), text, END_OF_COMMAND


def is_end_of_answer(message: bytes) -> bool:
    return message == END_OF_ANSWER


def answer_text(messages: Sequence[bytes]) -> str:
    """The text of an answer, without the last newline. `messages`: those before its end. Raises ProtocolError."""
    if any(len(message) < _TEXT_AT for message in messages):
        raise ProtocolError("a part of the daemon's answer is too short")
    parts = (message[_TEXT_AT:].decode(errors="replace").strip("\n\0") for message in messages)
    return "\n".join(part for part in parts if part)


def answer_messages(text: str) -> list[bytes]:
    """What the daemon sends for an answer of `text`."""
    shown = text.rstrip("\n")
    return [*([bytes(_TEXT_AT) + shown.encode()] if shown else []), END_OF_ANSWER]
