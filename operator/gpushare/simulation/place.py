"""How a process waits for a place on its GPU before its first context, as native/place.h has it: it asks the broker
where the board says that there is a queue, and says on stderr what it waits for. Standard library alone.
"""

import os
import socket
import sys
import time
from contextlib import suppress

from gpushare.mps.attach_protocol import (
    CREDENTIALS,
    PlaceAnswer,
    PlaceState,
    ProtocolError,
    Request,
    parse_place_answer,
    request_message,
)
from gpushare.simulation.wire import connect

SILENT_SECONDS = 180.0
AGAIN_SECONDS = 0.5
AWAY_SECONDS = 60.0
"""After so long without an answer the context is asked for anyway: its connection waits as well."""
_PLACES_AT = 24


def wait_for_place(pipe: str) -> bool:
    """Returns once the container has a place, or needs none; False: it waited too long."""
    told, heard, began = 0, time.monotonic(), time.monotonic()
    while _has_queue(pipe) and time.monotonic() - heard < AWAY_SECONDS:
        with suppress(OSError, ProtocolError), _ask(pipe) as sock:
            while (answer := parse_place_answer(sock.recv(64))).state is PlaceState.WAITING:
                heard = time.monotonic()
                if answer.position != told:
                    told = answer.position
                    _tell(answer)
            if told:
                print(f"gpushare: the wait ended after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            return answer.state is not PlaceState.REFUSED
        time.sleep(AGAIN_SECONDS)
    return True


def _has_queue(pipe: str) -> bool:
    try:
        with open(f"{pipe}/board", "rb") as board:  # noqa: PTH123 - pathlib costs 10 ms of start-up
            return any(os.pread(board.fileno(), 4, _PLACES_AT))
    except OSError:
        return False


def _ask(pipe: str) -> socket.socket:
    sock = connect(f"{pipe}/control", SILENT_SECONDS, socket.SOCK_SEQPACKET)
    try:
        if not sock.recv(64):
            raise ProtocolError("the broker hung up without a greeting")
        sock.send(CREDENTIALS)
        sock.send(request_message(Request.PLACE))
    except BaseException:
        sock.close()
        raise
    return sock


def _tell(answer: PlaceAnswer) -> None:
    text = (
        f"gpushare: this program waits for a place on the GPU: number {answer.position} of {answer.waiting} that wait; "
        f"all {answer.places} places are taken. Ctrl-C gives up."
    )
    print(text, file=sys.stderr, flush=True)
