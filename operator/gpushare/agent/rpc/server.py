"""A gRPC server on a unix socket.

Guarantees: a request has at most MAX_REQUEST_BYTES; once `stop` has returned no connection is open and no call under
way, whatever the peers do. The socket's file belongs to whoever started the server, and may have been renamed.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpclib.server
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol

from gpushare.agent.rpc.connection import Connections, RpcConnection

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""The bound of gRPC's own servers."""
LEAVE_SECONDS = 1.0
"""A peer may take so long to read what it was sent before its connection is broken off."""


class RpcServer:
    def __init__(self, services: Collection[Any]) -> None:
        """`services`: of the generated classes `...Base`."""
        self._connections = Connections()
        self._server = _Server(services, self._connections)

    async def start(self, socket: Path) -> None:
        """OSError: it cannot be made there."""
        await self._server.start(path=str(socket))

    async def stop(self, grace: float | None) -> None:
        """`grace`: seconds for the calls under way; None: they are broken off."""
        await self._connections.idle(grace or 0.0)
        self._server.close()
        # grpclib leaves connections open, and since Python 3.12 waits until the peers have closed them.
        await self._connections.close(LEAVE_SECONDS)
        await self._server.wait_closed()


class _Server(grpclib.server.Server):
    def __init__(self, services: Collection[Any], connections: Connections) -> None:
        super().__init__(services)
        self._mapping = _Methods(self._mapping)
        self._connections = connections

    def _protocol_factory(self) -> H2Protocol:
        return RpcConnection(super()._protocol_factory(), MAX_REQUEST_BYTES, self._connections)


class _Methods(dict[str, Handler]):
    """Has one for each name. grpclib's own answer about a method that it lacks has no content type, and Go's clients
    read UNKNOWN where UNIMPLEMENTED is meant.
    """

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name) or Handler(_unimplemented, Cardinality.UNARY_UNARY, None, None)


async def _unimplemented(_: "grpclib.server.Stream[Any, Any]") -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "there is no such method")


async def received(stream: "grpclib.server.Stream[Any, Any]") -> Any:
    """The request of a call that has one."""
    request = await stream.recv_message()
    if request is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the call has no request")
    return request
