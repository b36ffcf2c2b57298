"""The broker's turns against the supervisor's: which attach asks for one, and for how long nobody else has it."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from gpushare.mps.broker.turns import KEEP_SECONDS, NoTurnError, Turns
from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor.turns import Terms, TurnServer
from gpushare.mps.wire import ClientGrant, DaemonLimits
from tests.unit.mps.broker.fake_daemon import SERVER, Commands

CEILING = DaemonLimits(threads=50, memory_mib=8192)
GRANT = ClientGrant(threads=10, memory_mib=2048, processes=2)
MORE = ClientGrant(threads=20, memory_mib=2048, processes=2)


class Supervisor:
    """`asked`: how often a turn was asked for. `lock`: taken while somebody has one. `wait`: why there is none."""

    def __init__(self, gpu: GpuDir) -> None:
        self.asked = 0
        self.wait = ""
        self.lock = threading.Lock()
        self.commands = Commands()
        self.server = TurnServer(gpu, self.commands, self._terms, self.lock, os.geteuid())

    def _terms(self) -> Terms | str:
        self.asked += 1
        return self.wait or Terms(SERVER, CEILING)

    def is_free(self, seconds: float = 5.0) -> bool:
        if not self.lock.acquire(timeout=seconds):
            return False
        self.lock.release()
        return True


@pytest.fixture
def supervisor(gpu: GpuDir) -> Iterator[Supervisor]:
    supervisor = Supervisor(gpu)
    supervisor.server.start()
    yield supervisor
    supervisor.server.end()


async def hold(turns: Turns, grant: ClientGrant = GRANT, container: str = "app") -> int:
    async with turns.hold(grant, "pod", container) as given:
        return given.server_pid


@pytest.mark.parametrize(
    ("second", "asked"),
    [((GRANT, "app"), 1), ((MORE, "app"), 2), ((GRANT, "another"), 2)],
    ids=["the same container", "it has another grant now", "another container"],
)
async def test_a_turn_serves_its_own_container_and_grant_alone(
    gpu: GpuDir, supervisor: Supervisor, second: tuple[ClientGrant, str], asked: int
) -> None:
    turns = Turns(gpu)
    assert [await hold(turns), await hold(turns, *second)] == [SERVER, SERVER]
    assert supervisor.asked == asked
    assert supervisor.commands.sent[0] == f"set_active_thread_percentage {SERVER} 10"
    assert (f"set_active_thread_percentage {SERVER} 20" in supervisor.commands.sent) == (second[0] is MORE)


async def test_a_turn_that_is_kept_ends_by_itself_and_is_not_used_longer(gpu: GpuDir, supervisor: Supervisor) -> None:
    turns = Turns(gpu)
    await hold(turns)
    assert not supervisor.is_free(0)
    assert await asyncio.to_thread(supervisor.is_free)
    await hold(turns)
    assert supervisor.asked == 2


async def test_attaches_in_a_row_do_not_lengthen_a_turn(gpu: GpuDir, supervisor: Supervisor) -> None:
    turns = Turns(gpu)
    async with asyncio.timeout(10):
        while supervisor.asked < 3:
            await hold(turns)
            await asyncio.sleep(KEEP_SECONDS / 5)


async def test_a_turn_in_which_an_attach_failed_is_not_kept(gpu: GpuDir, supervisor: Supervisor) -> None:
    turns = Turns(gpu)
    with pytest.raises(ZeroDivisionError):
        async with turns.hold(GRANT, "pod", "app"):
            raise ZeroDivisionError
    await hold(turns)
    assert supervisor.asked == 2


async def test_a_supervisor_that_hung_up_is_asked_anew(gpu: GpuDir, supervisor: Supervisor) -> None:
    turns = Turns(gpu)
    await hold(turns)
    supervisor.server.end()
    with pytest.raises(NoTurnError):
        await hold(turns, container="another")
    supervisor.wait = "the GPU takes no new client"
    again = Supervisor(gpu)
    again.wait = "the GPU is drained"
    again.server.start()
    try:
        with pytest.raises(NoTurnError, match="the GPU is drained"):
            await hold(turns)
    finally:
        again.server.end()
