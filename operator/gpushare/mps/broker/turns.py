"""The broker's side of the turns: while it holds one, the MPS server's limits are those of one grant."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpushare.mps.layout import GpuDir, namespace_name
from gpushare.mps.packets import comes_soon, has_hung_up, receive, send
from gpushare.mps.wire import ClientGrant, InvalidError, TurnAnswer, TurnRequest, decode, encode

TURN_SECONDS = 12.0
"""The time for the supervisor's answer: it may be reading the server's limits, or ending the turn of a broker that
has died."""
KEEP_SECONDS = 0.1
"""A CUDA process attaches for itself and, 15 to 50 ms later (H100, H200), for its context."""


class NoTurnError(Exception):
    """There is no turn now. The text says why."""


class SupervisorAwayError(NoTurnError):
    """Nobody answers: the supervisor restarts, say."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """`until`: CLOCK_MONOTONIC seconds after which no further attach is begun in it."""

    request: TurnRequest
    sock: socket.socket
    answer: TurnAnswer
    until: float

    def serves(self, request: TurnRequest) -> bool:
        return self.request == request and time.monotonic() < self.until and not has_hung_up(self.sock)


class Turns:
    """The turns of one GPU. One turn at a time: `hold` is not called while a block of it runs.

    A turn is kept for KEEP_SECONDS from its beginning, for the next attach of the same container with the same grant,
    which need not ask then. Whoever else asks ends it.
    """

    def __init__(self, gpu: GpuDir) -> None:
        self._gpu = gpu
        self._kept: _Turn | None = None

    @asynccontextmanager
    async def hold(self, grant: ClientGrant, pod_uid: str, container: str) -> AsyncIterator[TurnAnswer]:
        """The server, with the grant's limits until the block ends, or the container's namespace of it. NoTurnError."""
        request = TurnRequest(
            threads=grant.threads,
            memory_mib=grant.memory_mib,
            processes=grant.processes,
            namespace=namespace_name(pod_uid, container),
        )
        turn, self._kept = self._kept, None
        if turn is None or not turn.serves(request):
            if turn is not None:
                turn.sock.close()
            turn = await self._ask(request)
        try:
            yield turn.answer
        except BaseException:
            turn.sock.close()
            raise
        self._keep(turn)

    def end_kept(self) -> None:
        self._end(self._kept)

    async def _ask(self, request: TurnRequest) -> _Turn:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            answer = await self._answer(sock, request)
            if not answer.server_pid:
                raise NoTurnError(answer.wait)
        except BaseException:
            sock.close()
            raise
        return _Turn(request, sock, answer, time.monotonic() + KEEP_SECONDS)

    async def _answer(self, sock: socket.socket, request: TurnRequest) -> TurnAnswer:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                sock.connect(str(self._gpu.turns))
                await send(sock, encode(request))
                comes_soon(sock)
                packet = await receive(sock)
            packet.close()
            return decode(packet.data, TurnAnswer)
        except (OSError, TimeoutError, InvalidError) as error:
            raise SupervisorAwayError(f"the MPS pod's supervisor gives no turn: {_first_line(error)}") from error

    def _keep(self, turn: _Turn) -> None:
        left = turn.until - time.monotonic()
        if left <= 0:
            turn.sock.close()
            return
        self._kept = turn
        asyncio.get_running_loop().call_later(left, self._end, turn)

    def _end(self, turn: _Turn | None) -> None:
        if turn is not None and turn is self._kept:
            self._kept = None
            turn.sock.close()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
