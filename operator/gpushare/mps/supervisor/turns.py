"""Turns: the server's limits are one grant's while one client attaches, and the share's ceiling otherwise.

A server binds a client to the limits that it has when the client's process attaches, whatever the client's own
variables say and whatever is set afterwards (measured on an H100). The broker, which may not command the server, asks
here for a turn, attaches the client, and hangs up. Under protocol v3 a turn changes nothing of the server: the
container's namespace has its grant.

A process attaches at least twice, for itself and for its context, and a crowd attaches many times. So turns that follow
each other within FOLLOW_SECONDS are a series: a turn changes only what differs from the one before it, and the ceiling
is set again once, at the end, while no client waits.

Guarantees: one turn at a time; no turn ever gives more than the share's own limits; the ceiling is back before the lock
is free. A series ends after SERIES_SECONDS and lets others have the lock. A broker that does not hang up within
TURN_SECONDS loses its turn. Nobody but the broker's user is answered.

At the same socket the broker gets its listening socket, and leaves it for its successor (`kept_sockets`); that takes no
turn.
"""

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpushare.mps.control import ControlCommands, ControlError, RefusedError
from gpushare.mps.files import FileVersion, file_version
from gpushare.mps.layout import GpuDir
from gpushare.mps.protocol import MpsProtocol
from gpushare.mps.supervisor.kept_sockets import KeptSockets
from gpushare.mps.supervisor.namespaces import Namespaces
from gpushare.mps.wire import (
    ClientGrant,
    DaemonLimits,
    InvalidError,
    SocketsAction,
    SocketsAnswer,
    SocketsRequest,
    TurnAnswer,
    TurnRequest,
    decode,
    encode,
)
from gpushare.process.threads import start_thread

LOG = logging.getLogger(__name__)
TURN_SECONDS = 8.0
"""An attach takes the broker a few milliseconds, and at most some seconds where it has to give a client up."""
FOLLOW_SECONDS = 0.25
"""The time from a process' first CUDA call to its context: a tenth of a second on an H100."""
SERIES_SECONDS = 1.0
"""Whoever reads or writes the limits waits as long, and for the turn under way."""
PAUSE_SECONDS = 0.001
"""A pause after a series that was cut, for whoever waits for the lock: it is given to nobody in order."""
REQUEST_SECONDS = 1.0
ACCEPT_SECONDS = 0.5
FAULT = "FAULT"
UNKNOWN = 0
MAX_REQUEST_BYTES = 1024
MAX_DESCRIPTORS = 3
BACKLOG = 4
"""The broker keeps one connection at a time."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The server that serves clients now, and the limits that none of them may exceed."""

    server: int
    ceiling: DaemonLimits
    protocol: MpsProtocol = MpsProtocol.V2


class TurnLimits:
    """What a server gives new clients, as far as turns changed it. Call it under the lock of the limits alone."""

    def __init__(self, control: ControlCommands) -> None:
        self._control = control
        self._terms: Terms | None = None
        """The terms of the latest turn; None: the server has its share's limits."""
        self._threads = self._memory_mib = UNKNOWN

    @property
    def changed(self) -> bool:
        """Tells whether they may differ from the share's."""
        return self._terms is not None and (self._threads, self._memory_mib) != _ceiling(self._terms)

    def set(self, terms: Terms, grant: ClientGrant) -> None:
        """Sets the limits to those of `grant`, and never above the share's. ControlError; also where the server is
        in FAULT, of which `terms` may not know yet.
        """
        if self._terms is None or self._terms.server != terms.server:
            self._threads, self._memory_mib = _ceiling(terms)
        self._terms = terms
        ceiling = terms.ceiling
        wanted = min(grant.threads, ceiling.threads), min(grant.memory_mib, ceiling.memory_mib)
        if wanted != (self._threads, self._memory_mib):
            if self._in_fault(terms.server):
                raise RefusedError(f"get_server_status {terms.server}", FAULT)
            self._change(terms.server, *wanted)

    def restore(self) -> None:
        """Sets the limits to the share's. ControlError: they are unknown, and the next turn sets them."""
        terms = self._terms
        if terms is not None and self.changed:
            try:
                if not self._in_fault(terms.server):
                    self._change(terms.server, *_ceiling(terms))
            except BaseException:
                self._threads = self._memory_mib = UNKNOWN  # others may set them before the next turn
                raise
        self._terms = None

    def _in_fault(self, server: int) -> bool:
        """A change of the limits of such a server hangs the daemon (measured); it is replaced."""
        return self._control.server_status(server) == FAULT

    def _change(self, server: int, threads: int, memory_mib: int) -> None:
        """Sets only what differs. A value counts as unknown until the server has it."""
        if threads != self._threads:
            self._threads = UNKNOWN
            self._control.set_server_threads(server, threads)
            self._threads = threads
        if memory_mib != self._memory_mib:
            self._memory_mib = UNKNOWN
            self._control.set_server_memory(server, memory_mib)
            self._memory_mib = memory_mib


class TurnServer:
    """The turns of one GPU. `terms`: of this moment, or a sentence that says why there is no turn. `lock`: held
    during a turn; whoever reads or writes the server's limits holds it too. `uid`: the broker's. `namespaces`: of
    protocol v3.
    """

    def __init__(
        self,
        gpu: GpuDir,
        control: ControlCommands,
        terms: Callable[[], Terms | str],
        lock: threading.Lock,
        uid: int,
        namespaces: Namespaces | None = None,
    ) -> None:
        self._gpu = gpu
        self._namespaces = namespaces
        self._limits = TurnLimits(control)
        self._terms = terms
        self._lock = lock
        self._uid = uid
        self._listener: socket.socket | None = None
        self._version: FileVersion | None = None
        self._kept = KeptSockets(gpu)
        self._ended = threading.Event()

    def start(self) -> None:
        """Listens, in a thread of its own. OSError: not yet; call it again.

        It listens again where the name is gone: a GPU that this share gets back at once has a new directory.
        """
        if self._listener is not None and file_version(self._gpu.turns) == self._version:
            return
        self._gpu.client.mkdir(mode=0o755, exist_ok=True)
        new = self._gpu.turns.with_name(".turns.new")
        new.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(str(new))
            new.chmod(0o666)  # who connects is checked; to give the file to the broker would take a capability
            listener.listen(BACKLOG)
            listener.settimeout(ACCEPT_SECONDS)
            self._version = file_version(new)
            new.replace(self._gpu.turns)
            self._listener = listener
            start_thread(self._serve, listener, name=f"turns {self._gpu.uuid}")
        except OSError:
            self._listener = None
            listener.close()
            raise

    def end(self) -> None:
        """No more turns; one under way is not cut short."""
        self._ended.set()
        self._gpu.turns.unlink(missing_ok=True)
        self._kept.drop()

    def let_nobody_in(self) -> None:
        """Drops the broker's sockets. Call it once no client is let in any more."""
        self._kept.drop()

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            while not self._ended.is_set() and self._listener is listener:
                sock = _accepted(listener, ACCEPT_SECONDS)
                if sock is None:
                    continue
                request = self._request(sock)
                if request is None:
                    continue
                ends = time.monotonic() + SERIES_SECONDS
                with self._lock:
                    self._series(listener, sock, request, ends)
                if time.monotonic() >= ends:
                    self._ended.wait(PAUSE_SECONDS)

    def _series(self, listener: socket.socket, first: socket.socket, request: TurnRequest, ends: float) -> None:
        """Serves turns under the lock, until `ends` (CLOCK_MONOTONIC). Whatever fails in it, the next one has to be
        possible."""
        sock: socket.socket | None = first
        wanted: TurnRequest | None = request
        while sock is not None:
            with sock:
                try:
                    if wanted is not None:
                        self._turn(sock, wanted)
                except OSError as error:
                    LOG.debug("GPU %s: the broker's turn ended: %s", self._gpu.uuid, error)
                except Exception:
                    LOG.exception("GPU %s: this turn failed", self._gpu.uuid)
            left = min(FOLLOW_SECONDS, ends - time.monotonic())
            follows = self._limits.changed and left > 0 and not self._ended.is_set()
            sock = _accepted(listener, left) if follows else None
            wanted = self._request(sock) if sock is not None else None
        try:
            self._limits.restore()
        except ControlError as error:
            LOG.warning("GPU %s: the server has not got the share's limits back: %s", self._gpu.uuid, error)
        except Exception:
            LOG.exception("GPU %s: the server has not got the share's limits back", self._gpu.uuid)

    def _request(self, sock: socket.socket) -> TurnRequest | None:
        """The turn that is asked for; None: something else was, and the connection is closed."""
        try:
            request = self._read(sock)
            if isinstance(request, TurnRequest):
                return request
        except OSError as error:
            LOG.debug("GPU %s: the broker's request ended: %s", self._gpu.uuid, error)
        except Exception:
            LOG.exception("GPU %s: this request failed", self._gpu.uuid)
        sock.close()
        return None

    def _read(self, sock: socket.socket) -> TurnRequest | None:
        """What is asked for; a request about the broker's sockets is answered. OSError."""
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._uid:
            LOG.warning("GPU %s: UID %d asked for a turn, which is for the attach broker", self._gpu.uuid, uid)
            return None
        sock.settimeout(REQUEST_SECONDS)
        content, descriptors, _, _ = socket.recv_fds(sock, MAX_REQUEST_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        try:
            request = _decoded(content)
        except InvalidError as error:
            LOG.warning("GPU %s: a turn was asked for in a way that is not understood: %s", self._gpu.uuid, error)
            request = None
        if isinstance(request, SocketsRequest) and request.action is SocketsAction.KEEP:
            self._keep(sock, descriptors, request.inode)
            return None
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(request, SocketsRequest):
            self._give(sock)
            return None
        return request

    def _keep(self, sock: socket.socket, descriptors: Sequence[int], inode: int) -> None:
        refused = self._kept.keep(descriptors, inode)
        if refused:
            LOG.warning("GPU %s: the broker's sockets are not kept: %s", self._gpu.uuid, refused)
        sock.send(encode(SocketsAnswer(refused=refused)))

    def _give(self, sock: socket.socket) -> None:
        try:
            given = self._kept.give()
        except OSError as error:
            LOG.warning("GPU %s: there is no socket for clients: %s", self._gpu.uuid, error)
            sock.send(encode(SocketsAnswer(refused=str(error)[:512])))
            return
        try:
            socket.send_fds(sock, [encode(SocketsAnswer(inode=given.inode))], [one.fileno() for one in given.all])
        finally:
            given.close()

    def _turn(self, sock: socket.socket, request: TurnRequest) -> None:
        """Sets the grant's limits, and lets the broker attach."""
        terms = self._terms()
        if isinstance(terms, str):
            _answer(sock, TurnAnswer(wait=terms[:512]))
            return
        try:
            namespace = self._prepare(terms, request)
        except ControlError as error:
            LOG.warning("GPU %s: no turn: %s", self._gpu.uuid, error)
            _answer(sock, TurnAnswer(wait=str(error)[:512]))
            return
        _answer(sock, TurnAnswer(server_pid=terms.server, namespace=namespace))
        sock.settimeout(TURN_SECONDS)
        with suppress(TimeoutError):
            sock.recv(1)

    def _prepare(self, terms: Terms, request: TurnRequest) -> str:
        """The request's limits are in force for its client: the server's, or those of the namespace that is returned.
        ControlError.
        """
        if terms.protocol is MpsProtocol.V3 and self._namespaces is not None:
            return self._namespaces.prepare(terms.server, terms.ceiling, request)
        self._limits.set(terms, request)
        return ""


def _decoded(content: bytes) -> TurnRequest | SocketsRequest:
    """InvalidError."""
    try:
        return decode(content, TurnRequest)
    except InvalidError as error:
        try:
            return decode(content, SocketsRequest)
        except InvalidError:
            raise error from None


def _ceiling(terms: Terms) -> tuple[int, int]:
    """(percent, MiB)."""
    return terms.ceiling.threads, terms.ceiling.memory_mib


def _accepted(listener: socket.socket, seconds: float) -> socket.socket | None:
    """The next connection; None: there is none within `seconds`."""
    listener.settimeout(seconds)
    try:
        return listener.accept()[0]
    except OSError:  # nobody came, or we are out of descriptors
        return None


def _answer(sock: socket.socket, answer: TurnAnswer) -> None:
    sock.send(encode(answer))
