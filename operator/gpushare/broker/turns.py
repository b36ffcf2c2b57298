"""The broker's side of a turn: while it holds one, the MPS server's limits are those of one grant."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpushare.broker.packets import comes_soon, receive, send
from gpushare.mps.layout import GpuDir, namespace_name
from gpushare.mps.wire import ClientGrant, InvalidError, TurnAnswer, TurnRequest, decode, encode

TURN_SECONDS = 12.0
"""For the supervisor's answer: it may be reading the server's limits, or ending the turn of a broker that has died."""


class NoTurnError(Exception):
    """There is no turn now. The text says why."""


@asynccontextmanager
async def turn(gpu: GpuDir, grant: ClientGrant, pod_uid: str, container: str) -> AsyncIterator[TurnAnswer]:
    """The server, with the grant's limits until the block ends, or the container's namespace of it. NoTurnError."""
    request = TurnRequest(
        threads=grant.threads,
        memory_mib=grant.memory_mib,
        processes=grant.processes,
        namespace=namespace_name(pod_uid, container),
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                sock.connect(str(gpu.turns))
                await send(sock, encode(request))
                comes_soon(sock)
                packet = await receive(sock)
            packet.close()
            answer = decode(packet.data, TurnAnswer)
        except (OSError, TimeoutError, InvalidError) as error:
            raise NoTurnError(f"the MPS pod's supervisor gives no turn: {_first_line(error)}") from error
        if not answer.server_pid:
            raise NoTurnError(answer.wait)
        yield answer


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
