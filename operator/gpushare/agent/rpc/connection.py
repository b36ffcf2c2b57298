"""A connection on which no call receives more than a limit. grpclib has none: a peer may send a message of 4 GiB."""

import asyncio
from collections.abc import Callable
from typing import cast

from grpclib.protocol import H2Protocol
from h2.connection import H2Connection
from h2.events import DataReceived

POLL_SECONDS = 0.02

# h2 remembers calls that have ended, for frames that come late: 65,536 of each connection, which is 8 MiB after a few
# days of asking the kubelet who holds what. Nothing comes so late.
H2Connection.MAX_CLOSED_STREAMS = 256


class Connections:
    """The open ones of one server."""

    def __init__(self) -> None:
        self._open: dict[RpcConnection, asyncio.Transport] = {}
        self._closing = False

    def add(self, connection: "RpcConnection", transport: asyncio.Transport) -> None:
        self._open[connection] = transport
        if self._closing:
            transport.abort()

    def remove(self, connection: "RpcConnection") -> None:
        self._open.pop(connection, None)

    async def idle(self, seconds: float) -> None:
        """Returns once nobody waits for an answer, or after `seconds`."""
        await _until(lambda: not any(connection.waited_for() for connection in self._open), seconds)

    async def close(self, seconds: float) -> None:
        """Closes all, and each that is made later. `seconds`: peers have so long to read what they were sent."""
        self._closing = True
        for transport in self._open.values():
            transport.close()
        await _until(lambda: not self._open, seconds)
        for transport in self._open.values():
            transport.abort()


class RpcConnection(H2Protocol):
    """What a call receives here is one message, so a limit of its bytes is the message's."""

    def __init__(self, plain: H2Protocol, limit: int, connections: Connections) -> None:
        """`plain`: grpclib's own, in whose place this one is. `limit`: bytes that a call receives."""
        super().__init__(plain.handler, plain.config, plain.h2_config)
        self._limit = limit
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.processor.processors[DataReceived] = self._data
        self._connections.add(self, cast(asyncio.Transport, transport))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def waited_for(self) -> bool:
        """Whether a peer still waits for an answer. grpclib keeps the stream of a call that was taken back before its
        task ran for the first time.
        """
        return any(stream.closable for stream in self.processor.streams.values())

    def _data(self, event: DataReceived) -> None:
        self.processor.process_data_received(event)
        stream = self.processor.streams.get(event.stream_id)
        if stream is not None and stream.data_received > self._limit:
            stream.__terminated__(f"more than {self._limit} bytes")


async def _until(met: Callable[[], bool], seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not met() and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - grpclib has no event for it
        await asyncio.sleep(POLL_SECONDS)
