"""One connection, and what clients may take of a server: bytes go through to aiohttp; a first request and the reading
of answers have a time limit."""

import asyncio
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may take of a server."""

    handshake_seconds: float = 10.0
    """The time of a TLS handshake; Kubernetes' clients wait as long. Where both are short of CPU, who waits less
    breaks off what the other has finished, and has sent a request on."""
    head_seconds: float = 10.0
    """The time from the first byte of the first request to the end of its headers."""
    keepalive_seconds: float = 75.0
    """The time until the first request begins, and between two requests, the headers of the second one included. A
    client with many requests at once opens connections that it does not need in the end, and keeps them for later as
    any other."""
    answer_seconds: float = 10.0
    """The time of the client to take what is written, whenever it has fallen behind."""
    drain_seconds: float = 1.0
    """The time of requests under way when the server ends."""
    connections: int = 512
    """A further one takes the place of another (`peers`)."""
    body_bytes: int = 32 * 1024 * 1024
    """The memory of all large bodies together (`bodies`)."""


class HttpConnection(asyncio.Protocol):
    """`gone` is called once, when it has ended."""

    def __init__(
        self,
        accepted: socket.socket,
        peer: str,
        handler: web.RequestHandler,
        gone: Callable[["HttpConnection"], None],
        client_names: Collection[str],
        limits: ServerLimits,
    ) -> None:
        self.peer = peer
        self.handler = handler
        self._socket = accepted
        self._gone = gone
        self._client_names = client_names
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        self._over = False
        self._begun = False
        """The first byte of the first request has come."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """The headers of a request have come. From then on aiohttp limits the time between requests."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _expect(self, seconds: float) -> None:
        """The next step towards the first request, within that time."""
        self.heard()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        """Ends the connection at once, in whatever state it is."""
        if self._transport is not None:
            self._transport.abort()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # in the handshake, which fails by it
        except OSError:
            return  # it has ended

    def ended(self) -> None:
        """The connection has ended, also where it never came to a connection, since the handshake failed."""
        if self._over:
            return
        self._over = True
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        self._gone(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows for the type checker
        self._transport = transport
        self._expect(self._limits.keepalive_seconds)
        self.handler.connection_made(transport)
        if self._client_names and _common_name(transport) not in self._client_names:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._expect(self._limits.head_seconds)
        self.handler.data_received(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self._unread = asyncio.get_running_loop().call_later(self._limits.answer_seconds, self.abort)
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.handler.connection_lost(exc)
        self.ended()


def _common_name(transport: asyncio.Transport) -> str:
    """The common name in the client's certificate, which the handshake has verified; empty where it names none."""
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    pairs = (pair for part in certificate.get("subject") or () for pair in part)
    return next((value for name, value in pairs if name == "commonName"), "")
