"""Turns: the server's limits are one grant's while one client attaches, and the share's ceiling otherwise.

A server binds a client to the limits that it has when the client's process attaches, whatever the client's own
variables say and whatever is set afterwards (measured on an H100). The broker, which may not command the server, asks
here for a turn, attaches the client, and hangs up.

Guarantees: one turn at a time; no turn ever gives more than the share's own limits; the ceiling is back before the lock
is free. A broker that does not hang up within TURN_SECONDS loses its turn. Nobody but the broker's user is answered.
"""

import logging
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from gpushare.api.gpunode import Limits
from gpushare.mps.control import ControlCommands, ControlError
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import ClientGrant, TurnAnswer

LOG = logging.getLogger(__name__)
TURN_SECONDS = 8.0
"""An attach takes the broker a few milliseconds, and at most some seconds where it has to give a client up."""
REQUEST_SECONDS = 1.0
ACCEPT_SECONDS = 0.5
MAX_REQUEST_BYTES = 1024
BACKLOG = 4
"""The broker keeps one connection at a time."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The server that serves clients now, and the limits that none of them may exceed."""

    server: int
    ceiling: Limits


class TurnServer:
    """Of one GPU. `terms`: of this moment, or a sentence that says why there is no turn. `lock`: held during a turn;
    whoever reads or writes the server's limits holds it too. `uid`: the broker's.
    """

    def __init__(
        self,
        gpu: GpuDir,
        control: ControlCommands,
        terms: Callable[[], Terms | str],
        lock: threading.Lock,
        uid: int,
    ) -> None:
        self._gpu = gpu
        self._control = control
        self._terms = terms
        self._lock = lock
        self._uid = uid
        self._listener: socket.socket | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Listens, in a thread of its own. OSError."""
        if self._listener is not None:
            return
        self._gpu.client.mkdir(mode=0o755, exist_ok=True)
        new = self._gpu.turns.with_name(".turns.new")
        new.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(new))
        new.chmod(0o666)  # who connects is checked; to give the file to the broker would take a capability
        listener.listen(BACKLOG)
        listener.settimeout(ACCEPT_SECONDS)
        new.replace(self._gpu.turns)
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name=f"turns {self._gpu.uuid}", daemon=True).start()

    def end(self) -> None:
        """No more turns; one under way is not cut short."""
        self._ended.set()
        self._gpu.turns.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            while not self._ended.is_set():
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                with sock:
                    try:
                        self._turn(sock)
                    except OSError as error:
                        LOG.debug("GPU %s: the broker's turn ended: %s", self._gpu.uuid, error)
                    except Exception:  # the next turn has to be possible
                        LOG.exception("GPU %s: this turn failed", self._gpu.uuid)

    def _turn(self, sock: socket.socket) -> None:
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._uid:
            LOG.warning("GPU %s: UID %d asked for a turn, which is for the attach broker", self._gpu.uuid, uid)
            return
        sock.settimeout(REQUEST_SECONDS)
        try:
            grant = ClientGrant.model_validate_json(sock.recv(MAX_REQUEST_BYTES))
        except ValidationError as error:
            LOG.warning("GPU %s: a turn was asked for in a way that is not understood: %s", self._gpu.uuid, error)
            return
        with self._lock:
            terms = self._terms()
            if isinstance(terms, str):
                _answer(sock, TurnAnswer(wait=terms[:512]))
                return
            try:
                self._let_in(sock, grant, terms)
            except ControlError as error:
                LOG.warning("GPU %s: no turn: %s", self._gpu.uuid, error)
                with suppress(OSError):
                    _answer(sock, TurnAnswer(wait=str(error)[:512]))

    def _let_in(self, sock: socket.socket, grant: ClientGrant, terms: Terms) -> None:
        """Sets the grant's limits, lets the broker attach, and sets the ceiling again. ControlError."""
        threads = min(grant.threads, terms.ceiling.threads)
        memory = min(grant.memory_mib, terms.ceiling.memory_mib)
        changes = (threads, memory) != (terms.ceiling.threads, terms.ceiling.memory_mib)
        try:
            if changes:
                self._set(terms.server, threads, memory)
            _answer(sock, TurnAnswer(server_pid=terms.server))
            sock.settimeout(TURN_SECONDS)
            with suppress(TimeoutError):
                sock.recv(1)
        finally:
            if changes:
                self._set(terms.server, terms.ceiling.threads, terms.ceiling.memory_mib)

    def _set(self, server: int, threads: int, memory_mib: int) -> None:
        self._control.set_server_threads(server, threads)
        self._control.set_server_memory(server, memory_mib)


def _answer(sock: socket.socket, answer: TurnAnswer) -> None:
    sock.send(answer.model_dump_json(by_alias=True).encode())
