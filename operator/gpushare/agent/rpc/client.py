"""gRPC questions to a server on a unix socket.

Guarantees: whatever the peer does, a question ends in time, with an answer of at most the channel's limit or with
an `RpcError`; a cancellation of who asks is never lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from grpclib.client import Channel
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from gpushare.agent.rpc.connection import Connections, RpcConnection

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""The bound of gRPC's own clients."""


class RpcError(Exception):
    """No answer. The text has gRPC's status and the reason."""


class RpcChannel(Channel):
    """Connects at the first question, and again at the next one after the connection was lost."""

    def __init__(self, socket: Path, limit: int = MAX_ANSWER_BYTES) -> None:
        """`limit`: bytes of an answer."""
        super().__init__(path=str(socket))
        self._limit = limit

    def _protocol_factory(self) -> H2Protocol:
        return RpcConnection(super()._protocol_factory(), self._limit, Connections())

    async def __connect__(self) -> H2Protocol:
        protocol = await super().__connect__()
        if protocol.connection.is_closing():  # grpclib would fail by an attribute that it has deleted
            raise ConnectionResetError("the peer closed the connection before the question was sent")
        return protocol


async def ask(method: Callable[..., Coroutine[Any, Any, Any]], request: Any, seconds: float) -> Any:
    """`method`: of a generated stub for one answer. RpcError: there is none."""
    before = _cancellations()
    try:
        # In a task of its own: grpclib wakes who asks by a cancellation that it never takes back, and `asyncio.timeout`
        # and `TaskGroup` of the callers count cancellations.
        return await asyncio.create_task(method(request, timeout=seconds))
    except Exception as error:  # noqa: BLE001 - of bytes that cannot be read it may be any: see `_reason`
        problem, cause = RpcError(_reason(error, seconds)), error
    if _cancellations() > before:  # at the same time
        raise asyncio.CancelledError from cause
    raise problem from cause


def _reason(error: Exception, seconds: float) -> str:
    match error:
        case GRPCError():
            return f"{error.status.name}: {error.message}"
        case TimeoutError():
            return f"DEADLINE_EXCEEDED: no answer within {seconds:g} s"
        case OSError() | StreamTerminatedError():
            return f"UNAVAILABLE: {error}"
        case _:  # grpclib, h2 and protobuf have errors of many types for it
            return f"INTERNAL: the answer cannot be read: {error!r}"


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
