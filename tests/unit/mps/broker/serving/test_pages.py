"""The pages of clients with a class: who gets which, and what a process that does as it likes gets away with."""

import asyncio
import mmap
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.pages.board import Board
from gpushare.mps.pages.client_pages import AGAIN_SECONDS, ASKS_WITHIN_SECONDS, MOST_KEPT
from gpushare.mps.pages.sending import MAPPED_SECONDS
from gpushare.mps.wire import ClientActivity, ClientGrant, GrantedContainer, RefusedAttach
from gpushare.process.procfs import Owner
from tests.unit.mps.broker.fake_daemon import FakeDaemon
from tests.unit.mps.broker.serving.paged_client import (
    GAVE_WAY_AT,
    GAVE_WAY_TO_AT,
    LAUNCHES_AT,
    PagedProcess,
    own_set_of,
)
from tests.unit.mps.broker.serving.scene import GRANT, grants, pod, refusals, serving, state, until

NONE, PROTECTED, NORMAL, BEST_EFFORT = range(4)
NAMES = {PROTECTED: "Protected", NORMAL: "Normal", BEST_EFFORT: "BestEffort", NONE: ""}
SECOND = 10**9


class Scene:
    """Containers of each class, of one GPU, with as many processes as a test starts in them."""

    def __init__(self, gpu: GpuDir) -> None:
        self.gpu = gpu
        self._containers: dict[int, Owner] = {}
        self._processes: list[PagedProcess] = []
        self.later = 0.0
        """How far the broker's clock is put forward."""
        self.owners = {
            number: Owner(f"{number}1111111-1111-1111-1111-111111111111", f"{number}" * 64) for number in NAMES
        }
        pods = [
            pod(owner.pod_uid, GrantedContainer(name="app", id=owner.container_id, grant=self._grant(number)))
            for number, owner in self.owners.items()
        ]
        write_model(gpu.grants, grants(*pods))

    @staticmethod
    def _grant(number: int) -> ClientGrant:
        return replace(GRANT, processes=4, client_class=NAMES[number], sm_percent=50 if number == BEST_EFFORT else 0)

    def clock(self) -> float:
        return boot_clock() + self.later

    def owners_of(self, pid: int) -> Sequence[Owner]:
        return (self._containers.get(pid, Owner("", "")),)

    async def client(self, number: int, attaches: bool = True) -> PagedProcess:
        process = PagedProcess(self.gpu.attach_control)
        self._containers[process.pid] = self.owners[number]
        self._processes.append(process)
        assert not attaches or await process.do("attach")
        return process

    async def end(self) -> None:
        for process in self._processes:
            await process.end()

    def activity(self, process: PagedProcess) -> ClientActivity | None:
        return next((item for item in state(self.gpu).activity if item.pid == process.pid), None)


@pytest.fixture
async def scene(gpu: GpuDir) -> AsyncIterator[Scene]:
    scene = Scene(gpu)
    yield scene
    await scene.end()


@pytest.fixture
async def broker(gpu: GpuDir, daemon: FakeDaemon, scene: Scene) -> AsyncIterator[None]:
    async with serving(gpu, owners=scene.owners_of, clock=scene.clock, look_seconds=0.0):
        await until(gpu.attach_control.exists)
        await until(gpu.board.exists)
        yield


def board(gpu: GpuDir) -> tuple[int, int]:
    """Number of the broker and generation, as a client reads them."""
    magic, version, number, generation = struct.unpack_from("<2I2Q", gpu.board.read_bytes())
    assert (magic, version) == (0x42737067, 1)
    return number, generation


@pytest.mark.parametrize(
    ("number", "own"),
    [(NONE, (NONE, 0, 0, 0)), (PROTECTED, (PROTECTED, 1, 1, 0)), (NORMAL, (NORMAL, 1, 0, 0)),
     (BEST_EFFORT, (BEST_EFFORT, 1, 0, 0))],
)  # fmt: skip
async def test_a_client_gets_the_pages_of_the_class_that_was_granted(
    broker: None, scene: Scene, number: int, own: tuple[int, int, int, int]
) -> None:
    client = await scene.client(number)
    answer = await client.do("ask")
    assert own_set_of(answer) == own
    assert answer[1:3] == {BEST_EFFORT: [50, 5], NONE: [0, 0]}.get(number, [0, 5])


async def test_a_process_that_has_not_attached_gets_no_pages(broker: None, scene: Scene) -> None:
    client = await scene.client(PROTECTED, attaches=False)
    assert own_set_of(await client.do("ask")) == (NONE, 0, 0, 0)
    assert refusals(scene.gpu) == []


async def test_best_effort_reads_the_words_of_protected_clients_alone(broker: None, scene: Scene) -> None:
    protected, normal, best_effort = [await scene.client(number) for number in (PROTECTED, NORMAL, BEST_EFFORT)]
    for client in (protected, normal):
        await client.do("ask")
    await protected.do("put", 1, 8, 7)
    generation = board(scene.gpu)[1]
    answer = await best_effort.do("ask")
    assert own_set_of(answer) == (BEST_EFFORT, 1, 0, 1)
    assert answer[6:8] == list(board(scene.gpu))
    assert await best_effort.do("word", 1) == 7
    second = await scene.client(PROTECTED)
    await second.do("ask")
    await until(lambda: board(scene.gpu)[1] != generation)
    assert own_set_of(await best_effort.do("ask", "BUSY")) == (BEST_EFFORT, 0, 0, 2)
    generation = board(scene.gpu)[1]
    await protected.end()
    await until(lambda: board(scene.gpu)[1] != generation)
    assert own_set_of(await best_effort.do("ask", "BUSY")) == (BEST_EFFORT, 0, 0, 1)


async def test_nobody_but_best_effort_with_pages_is_shown_who_is_busy(broker: None, scene: Scene) -> None:
    protected, other, best_effort = [await scene.client(number) for number in (PROTECTED, PROTECTED, BEST_EFFORT)]
    await protected.do("ask")
    assert own_set_of(await other.do("ask")) == (PROTECTED, 1, 1, 0)
    for client in (other, best_effort):
        assert own_set_of(await client.do("ask", "BUSY")) == (NONE, 0, 0, 0)


async def test_who_reads_a_busy_page_cannot_write_it(broker: None, scene: Scene) -> None:
    """As root of a container, who opens what it has again by /proc."""
    protected, best_effort = [await scene.client(number) for number in (PROTECTED, BEST_EFFORT)]
    await protected.do("ask")
    await best_effort.do("ask")
    assert await best_effort.do("attempts", 1) == []
    await protected.do("put", 1, 8, 9)
    assert await best_effort.do("word", 1) == 9, "its process goes on writing"


async def test_a_busy_page_that_is_not_sealed_is_shown_to_nobody(broker: None, scene: Scene) -> None:
    protected, best_effort = [await scene.client(number) for number in (PROTECTED, BEST_EFFORT)]
    before = board(scene.gpu)
    assert own_set_of(await protected.do("ask", seal=False)) == (PROTECTED, 1, 1, 0)
    assert own_set_of(await best_effort.do("ask")) == (BEST_EFFORT, 1, 0, 0)
    assert board(scene.gpu) == before
    await until(lambda: scene.activity(protected) is not None)
    told = scene.activity(protected)
    assert told is not None
    assert not told.sealed


async def test_the_own_page_cannot_be_filled(broker: None, scene: Scene) -> None:
    client = await scene.client(NORMAL)
    await client.do("ask")
    assert set(await client.do("attempts", 0)) == {"write", "map"}
    assert (await client.do("fill", 0, 255)) is None
    await until(lambda: (told := scene.activity(client)) is not None and told.fault)
    told = scene.activity(client)
    assert told is not None
    assert (told.launches, told.active_seconds, told.longest) == (0, 0.0, [])


async def test_pages_are_given_once_in_a_second(broker: None, scene: Scene) -> None:
    client = await scene.client(NORMAL)
    answers = [own_set_of(await client.do("ask")) for _ in range(20)]
    assert answers[:2] == [(NORMAL, 1, 0, 0), (NONE, 0, 0, 0)]
    assert answers.count((NORMAL, 1, 0, 0)) <= 3


async def test_new_pages_take_the_place_of_earlier_ones(broker: None, scene: Scene) -> None:
    """As of a process that has replaced its program."""
    client = await scene.client(NORMAL)
    await client.do("ask")
    await client.do("put", 0, LAUNCHES_AT, 100)
    await until(lambda: (told := scene.activity(client)) is not None and told.launches == 100)
    scene.later += AGAIN_SECONDS
    assert own_set_of(await client.do("ask")) == (NORMAL, 1, 0, 0)
    await client.do("put", 0, LAUNCHES_AT, 7)
    await until(lambda: (told := scene.activity(client)) is not None and told.launches == 7)
    told = scene.activity(client)
    assert told is not None
    assert told.fault == "", "another program counts anew"


async def test_who_gave_way_to_whom_is_told(broker: None, scene: Scene) -> None:
    protected, best_effort = [await scene.client(number) for number in (PROTECTED, BEST_EFFORT)]
    await protected.do("ask")
    await best_effort.do("ask")
    await best_effort.do("put", 0, GAVE_WAY_AT, SECOND // 10)
    await best_effort.do("put", 0, GAVE_WAY_TO_AT, SECOND // 10)
    await until(lambda: (told := scene.activity(best_effort)) is not None and told.gave_way_to)
    told = scene.activity(best_effort)
    assert told is not None
    assert [(item.pid, item.seconds) for item in told.gave_way_to] == [(protected.pid, 0.1)]


async def test_a_best_effort_client_that_never_asks_is_told(broker: None, scene: Scene, daemon: FakeDaemon) -> None:
    silent, asks, normal = [await scene.client(number) for number in (BEST_EFFORT, BEST_EFFORT, NORMAL)]
    await asks.do("ask")
    scene.later += ASKS_WITHIN_SECONDS + 1
    heartbeat = state(scene.gpu).heartbeat
    await until(lambda: state(scene.gpu).heartbeat > heartbeat)
    assert state(scene.gpu).without_pages == [], "without a context it is nobody"
    daemon.clients = [silent.pid, asks.pid, normal.pid]
    await until(lambda: [client.pid for client in state(scene.gpu).without_pages] == [silent.pid])
    await silent.do("ask")
    await until(lambda: state(scene.gpu).without_pages == [])


async def test_the_next_broker_blames_nobody_who_may_have_asked_this_one(
    gpu: GpuDir, daemon: FakeDaemon, scene: Scene
) -> None:
    options = {"owners": scene.owners_of, "clock": scene.clock, "look_seconds": 0.0}
    async with serving(gpu, **options):
        await until(gpu.board.exists)
        silent, asks = [await scene.client(BEST_EFFORT) for _ in range(2)]
        await asks.do("ask")
        daemon.clients = [silent.pid, asks.pid]
        scene.later += ASKS_WITHIN_SECONDS + 1
        await until(lambda: len(state(gpu).without_pages) == 1)
        before = board(gpu)
        inode = gpu.board.stat().st_ino
    async with serving(gpu, **options):
        await until(lambda: board(gpu)[0] != before[0])
        assert gpu.board.stat().st_ino == inode, "clients have the file mapped"
        heartbeat = state(gpu).heartbeat
        await until(lambda: state(gpu).heartbeat > heartbeat)
        assert [client.pid for client in state(gpu).without_pages] == [silent.pid]
        assert own_set_of(await asks.do("ask")) == (BEST_EFFORT, 1, 0, 0), "a new broker gives new pages"


async def test_pages_that_a_container_hoards_are_counted(broker: None, scene: Scene) -> None:
    """Each is memory of the broker's, whoever has it open."""
    hoarder, neighbour = [await scene.client(number) for number in (NORMAL, BEST_EFFORT)]
    given = []
    for _ in range(MOST_KEPT + 3):
        scene.later += AGAIN_SECONDS
        given.append((await hoarder.do("ask"))[0])
    assert given == [NORMAL] * (MOST_KEPT + 1) + [NONE] * 2
    assert (await neighbour.do("ask"))[0] == BEST_EFFORT
    await hoarder.do("let_go")
    assert (await hoarder.do("ask"))[0] == NORMAL


@pytest.mark.parametrize("says", ["", "00" * 4, "ff" * 64])
async def test_who_says_anything_but_mapped_protects_nobody(broker: None, scene: Scene, says: str) -> None:
    protected, best_effort = [await scene.client(number) for number in (PROTECTED, BEST_EFFORT)]
    await protected.do("ask", says=says)
    assert own_set_of(await best_effort.do("ask")) == (BEST_EFFORT, 1, 0, 0)
    expected = [(RefusedAttach.PROTOCOL, "", 1)] if says else []
    await until(lambda: refusals(scene.gpu) == expected)


async def test_a_client_that_hangs_after_its_pages_holds_nobody_up(broker: None, scene: Scene) -> None:
    hanging, best_effort = [await scene.client(number) for number in (PROTECTED, BEST_EFFORT)]
    asking = asyncio.create_task(hanging.do("ask", says="", hangs=True))
    await until(lambda: scene.activity(hanging) is not None)
    began = asyncio.get_running_loop().time()
    assert own_set_of(await best_effort.do("ask")) == (BEST_EFFORT, 1, 0, 0)
    assert asyncio.get_running_loop().time() - began < MAPPED_SECONDS / 2
    async with asyncio.timeout(5 * MAPPED_SECONDS):
        await asking


async def test_a_board_that_cannot_be_made_takes_nothing_but_the_classes(
    gpu: GpuDir, daemon: FakeDaemon, scene: Scene
) -> None:
    gpu.board.mkdir()
    async with serving(gpu, owners=scene.owners_of, clock=scene.clock):
        await until(gpu.attach_control.exists)
        client = await scene.client(PROTECTED)
        assert own_set_of(await client.do("ask")) == (NONE, 0, 0, 0)


def test_a_board_is_mapped_before_its_broker_writes(tmp_path: Path) -> None:
    path = tmp_path / "board"
    first = Board(path, broker=5)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
    first.change()
    assert struct.unpack_from("<2I2Q", mapped) == (0x42737067, 1, 5, first.generation)
    Board(path, broker=6)
    assert struct.unpack_from("<2I2Q", mapped)[2:] == (6, first.generation + 1)
