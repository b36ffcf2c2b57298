"""Containers that share fewer places on a GPU than they are: who gets one when, and what the others meet meanwhile."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gpushare.mps.attach_protocol import PlaceState
from gpushare.mps.broker.letting_in import RETRY_SECONDS
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.queue.holders import UNUSED_SECONDS
from gpushare.mps.wire import GpuGrants, GrantedContainer, GrantedPod, PlaceHolder, RefusedAttach, UnattachedClient
from gpushare.process.procfs import Owner, read_start_of_running
from tests.unit.mps.broker.fake_daemon import CREDENTIALS, GREETING, FakeDaemon, connect
from tests.unit.mps.broker.serving.scene import GRANT, SHARE, refusals, serving, state, until
from tests.unit.mps.broker.serving.waiting_client import WaitingProcess, owners, pod_of

MAX_WAIT = 3600.0
WAITING, GIVEN, REFUSED, NOT_NEEDED = PlaceState.WAITING, PlaceState.GIVEN, PlaceState.REFUSED, PlaceState.NOT_NEEDED
PLACES_AT = 24


def container(uid: str, namespace: str = "ml", client_class: str = "Normal") -> GrantedPod:
    grant = replace(GRANT, processes=4, client_class=client_class)
    return GrantedPod(
        uid=uid, namespace=namespace, name=uid, containers=[GrantedContainer(name="app", id=uid, grant=grant)]
    )


class Scene:
    """One GPU, whose server lists whoever made a context and lives; `app` is the container of each pod."""

    def __init__(self, gpu: GpuDir, daemon: FakeDaemon) -> None:
        self.gpu = gpu
        self.daemon = daemon
        self.later = 0.0
        """How far the broker's clock is put forward."""
        self.pods = [container(uid) for uid in ("one", "two", "three", "four")]
        self._processes: list[WaitingProcess] = []

    def clock(self) -> float:
        return boot_clock() + self.later

    def grant(self, *pods: GrantedPod, places: int = 1, closed: str = "") -> None:
        self.pods = list(pods) or self.pods
        granted = GpuGrants(
            uuid="GPU-0", share=SHARE, closed=closed, pods=self.pods, places=places, max_wait=MAX_WAIT if places else 0
        )
        write_model(self.gpu.grants, granted)

    async def process(self, uid: str, *, inits: bool = True) -> WaitingProcess:
        process = await WaitingProcess.start(self.gpu.attach_control, uid)
        self._processes.append(process)
        assert not inits or await process.do("cu_init")
        return process

    def lists(self, process: WaitingProcess) -> None:
        self.daemon.clients.append(process.pid)

    async def ends(self, process: WaitingProcess) -> None:
        await process.end()
        self.daemon.clients = [pid for pid in self.daemon.clients if pid != process.pid]

    async def computes(self, uid: str) -> WaitingProcess:
        process = await self.process(uid)
        assert await process.do("attach")
        self.lists(process)
        return process

    async def asks(self, uid: str) -> tuple[WaitingProcess, list[int]]:
        """A process that waits, and what it was told first."""
        process = await self.process(uid)
        await process.do("ask")
        return process, await process.do("hear")

    def held(self) -> list[str]:
        places = state(self.gpu).places
        return [] if places is None else [held.pod_uid for held in places.held]

    def queued(self) -> list[str]:
        return [item.pod_uid for item in state(self.gpu).queue]

    async def end(self) -> None:
        for process in self._processes:
            await process.end()


@pytest.fixture
async def scene(gpu: GpuDir, daemon: FakeDaemon) -> AsyncIterator[Scene]:
    scene = Scene(gpu, daemon)
    scene.grant()
    async with serving(gpu, owners=owners, clock=scene.clock, look_seconds=0.1):
        await until(gpu.attach_control.exists)
        yield scene
        await scene.end()


async def is_in(task: "asyncio.Task[Any]") -> bool:
    async with asyncio.timeout(10):
        return bool(await task)


async def test_a_process_starts_without_a_place_and_waits_at_its_first_context(scene: Scene) -> None:
    first, second = await scene.computes("one"), await scene.process("two")
    waiting = second.starts("attach")
    await until(lambda: scene.queued() == ["two"])
    assert scene.held() == ["one"]
    assert not waiting.done()
    await scene.ends(first)
    assert await is_in(waiting)
    await until(lambda: scene.held() == ["two"])
    assert state(scene.gpu).waiting == 0
    assert state(scene.gpu).waits.count == 2


async def test_a_container_with_a_place_has_it_for_all_its_contexts(scene: Scene) -> None:
    first, sibling = await scene.computes("one"), await scene.process("one")
    assert await first.do("attach")
    assert await sibling.do("attach")
    assert scene.held() == ["one"]


async def test_two_processes_of_a_container_wait_as_one(scene: Scene) -> None:
    first = await scene.computes("one")
    processes = [await scene.process("two") for _ in range(2)]
    waiting = [process.starts("attach") for process in processes]
    await until(lambda: scene.queued() == ["two"])
    assert state(scene.gpu).waiting == 1
    await scene.ends(first)
    assert [await is_in(task) for task in waiting] == [True, True]


async def test_a_process_that_was_not_seen_to_look_waits_at_once(scene: Scene) -> None:
    """Of which this broker missed the beginning, say."""
    await scene.computes("one")
    second = await scene.process("two", inits=False)
    waiting = second.starts("attach")
    await until(lambda: scene.queued() == ["two"])
    assert not waiting.done()


async def test_a_process_that_hangs_up_without_reading_its_greeting_has_looked(scene: Scene) -> None:
    await scene.computes("one")
    second = await scene.process("two", inits=False)
    await second.do("look", greeted=True)
    assert await second.do("attach")
    assert state(scene.gpu).abandoned == 0


async def test_a_program_that_replaces_itself_starts_without_a_place_again(scene: Scene) -> None:
    await scene.computes("one")
    second = await scene.process("two")
    assert await second.do("cu_init")
    waiting = second.starts("attach")
    await until(lambda: scene.queued() == ["two"])
    assert not waiting.done()


async def test_who_asks_is_told_its_position_and_each_change_of_it(scene: Scene) -> None:
    first = await scene.computes("one")
    second, told = await scene.asks("two")
    assert told == [WAITING, 1, 1, 1]
    third, told = await scene.asks("three")
    assert told == [WAITING, 2, 2, 1]
    await scene.ends(first)
    assert await second.do("hear") == [GIVEN, 0, 1, 1]
    assert await second.do("hear") is None, "its connection is there no more"
    assert await third.do("hear") == [WAITING, 1, 1, 1]
    assert await second.do("attach")
    scene.lists(second)
    assert scene.held() == ["two"]


async def test_who_asks_hears_once_a_minute_that_nothing_has_changed(scene: Scene) -> None:
    await scene.computes("one")
    second, told = await scene.asks("two")
    for _ in range(2):
        scene.later += 60
        assert await second.do("hear") == told


async def test_who_waits_for_25_minutes_gets_its_place_in_its_turn(scene: Scene) -> None:
    first = await scene.computes("one")
    asking, told = await scene.asks("two")
    waiting = (await scene.process("three")).starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    for _ in range(5):
        scene.later += 300
        assert (await asking.do("hear"))[:2] == told[:2]
    await scene.ends(first)
    assert (await asking.do("hear"))[0] == GIVEN
    assert scene.queued() == ["three"]
    assert await asking.do("attach")
    scene.lists(asking)
    assert not waiting.done()
    await scene.ends(asking)
    assert await is_in(waiting)
    assert refusals(scene.gpu) == []
    await until(lambda: state(scene.gpu).waits.count == 3)
    assert {bucket.seconds: bucket.count for bucket in state(scene.gpu).waits.buckets}[900] == 1, "only the first's"


async def test_who_gives_up_leaves_the_queue(scene: Scene) -> None:
    await scene.computes("one")
    second, _ = await scene.asks("two")
    third, _ = await scene.asks("three")
    await second.do("hang_up")
    assert await third.do("hear") == [WAITING, 1, 1, 1]
    waiting = (await scene.process("four")).starts("attach")
    await until(lambda: scene.queued() == ["three", "four"])
    await scene.ends(third)
    await until(lambda: scene.queued() == ["four"])
    assert not waiting.done()


async def test_protected_come_first_and_a_namespace_of_many_last(scene: Scene) -> None:
    many = [container(f"many-{number}", "many") for number in range(4)]
    scene.grant(*many, container("lone", "lone"), container("urgent", "many", "Protected"))
    running = await scene.computes("many-0")
    for uid in ("many-1", "many-2", "many-3", "lone", "urgent"):
        await scene.asks(uid)
    await until(lambda: scene.queued() == ["urgent", "lone", "many-1", "many-2", "many-3"])
    await scene.ends(running)
    await until(lambda: scene.held() == ["urgent"])


async def test_without_a_queue_nobody_needs_a_place(scene: Scene) -> None:
    scene.grant(places=0)
    await until(lambda: state(scene.gpu).places is None)
    for uid in ("one", "two"):
        process = await scene.computes(uid)
        await process.do("ask")
        assert await process.do("hear") == [NOT_NEEDED, 0, 0, 0]
    assert state(scene.gpu).queue == []
    written = state(scene.gpu).heartbeat
    await until(lambda: state(scene.gpu).heartbeat > written + 1.0)  # ten looks at the server's list
    assert state(scene.gpu).without_place == []


async def test_a_process_without_a_part_of_the_gpu_takes_nobodys_turn(scene: Scene) -> None:
    stranger = await scene.process("stranger", inits=False)
    await stranger.do("ask")
    assert await stranger.do("hear") == [NOT_NEEDED, 0, 0, 1]
    assert state(scene.gpu).waiting == 0


async def test_whoever_waits_too_long_is_refused_and_told(scene: Scene) -> None:
    await scene.computes("one")
    asking, _ = await scene.asks("two")
    waiting = (await scene.process("three")).starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    scene.later += MAX_WAIT
    while (heard := await asking.do("hear"))[0] == WAITING:
        pass
    assert heard[0] == REFUSED
    assert await asking.do("hear") is None
    assert not await waiting
    await until(lambda: len(refusals(scene.gpu)) == 2)
    assert {reason for reason, _, _ in refusals(scene.gpu)} == {RefusedAttach.NO_PLACE}
    [text] = {refusal.message for refusal in state(scene.gpu).refusals if refusal.pod_uid == "two"}
    assert text == (
        "it waited for a place on the GPU for 60 minutes, as long as its share lets it (clients.queue.maxWait): "
        "it was number 1 of 2 that wait, and the GPU has 1 place"
    )
    assert state(scene.gpu).waits.count == 1, "a wait without a place is none of these"


async def test_a_place_that_was_given_and_is_not_used_goes_to_the_next(scene: Scene) -> None:
    first = await scene.computes("one")
    second, _ = await scene.asks("two")
    third, _ = await scene.asks("three")
    await scene.ends(first)
    assert (await second.do("hear"))[0] == GIVEN
    scene.later += UNUSED_SECONDS
    while (heard := await third.do("hear"))[0] == WAITING:
        pass
    assert heard[0] == GIVEN


async def test_the_place_of_a_process_that_is_killed_is_free_at_once(scene: Scene) -> None:
    first = await scene.computes("one")
    second, _ = await scene.asks("two")
    waiting = (await scene.process("three")).starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    await scene.ends(first)
    assert (await second.do("hear"))[0] == GIVEN
    await scene.ends(second)
    assert await is_in(waiting)


async def test_who_looks_before_each_attach_is_told_while_others_wait(scene: Scene) -> None:
    """A tenant who puts a silent connection of his own before his context's gets it without a place."""
    await scene.computes("one")
    waiting, _ = await scene.asks("two")
    cheat = await scene.process("three")
    assert await cheat.do("cu_init")
    scene.lists(cheat)
    await until(lambda: state(scene.gpu).without_place)
    started = read_start_of_running(cheat.pid)
    assert started is not None
    told = UnattachedClient(pid=cheat.pid, started=started, pod_uid="three", container_id="three")
    assert state(scene.gpu).without_place == [told]
    assert scene.held() == ["one"]
    await scene.ends(cheat)
    await until(lambda: not state(scene.gpu).without_place)
    assert state(scene.gpu).waiting == 1
    await waiting.end()


async def test_who_looks_before_its_context_takes_a_place_that_nobody_waits_for(scene: Scene) -> None:
    cheat = await scene.process("one")
    assert await cheat.do("cu_init")
    scene.lists(cheat)
    await until(lambda: scene.held() == ["one"])
    assert (await scene.asks("two"))[1] == [WAITING, 1, 1, 1]


async def test_a_queue_for_a_gpu_that_is_used_ends_nobody(scene: Scene) -> None:
    scene.grant(places=0)
    await until(lambda: state(scene.gpu).places is None)
    first, second = await scene.computes("one"), await scene.computes("two")
    scene.grant(places=1)
    await until(lambda: sorted(scene.held()) == ["one", "two"])
    _, told = await scene.asks("three")
    assert told == [WAITING, 1, 1, 1]
    await scene.ends(first)
    await until(lambda: scene.held() == ["two"])
    assert state(scene.gpu).waiting == 1
    await scene.ends(second)
    await until(lambda: scene.held() == ["three"])
    assert state(scene.gpu).without_place == []


async def test_who_waits_goes_on_without_a_place_once_there_is_no_queue(scene: Scene) -> None:
    await scene.computes("one")
    asking, _ = await scene.asks("two")
    waiting = (await scene.process("three")).starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    scene.grant(places=0)
    assert (await asking.do("hear"))[0] == NOT_NEEDED
    assert await is_in(waiting)


async def test_more_places_are_handed_over_as_soon_as_the_agent_says_so(scene: Scene) -> None:
    await scene.computes("one")
    second, _ = await scene.asks("two")
    scene.grant(places=2)
    heard = [await second.do("hear")]
    while heard[-1][0] == WAITING:
        heard.append(await second.do("hear"))
    assert heard[-1] == [GIVEN, 0, 0, 2]


async def test_a_gpu_that_takes_no_client_hands_no_place_over_and_ends_no_wait(scene: Scene) -> None:
    first = await scene.computes("one")
    second, _ = await scene.asks("two")
    third = await scene.process("three")
    waiting = third.starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    scene.grant(closed="Draining: later")
    await scene.ends(first)
    await until(lambda: scene.held() == [])
    assert scene.queued() == ["two", "three"]
    scene.grant()
    assert (await second.do("hear"))[0] == GIVEN
    await scene.ends(second)
    assert await is_in(waiting)


async def test_who_loses_its_part_of_the_gpu_waits_no_more(scene: Scene) -> None:
    first = await scene.computes("one")
    asking, _ = await scene.asks("two")
    scene.grant(*(pod for pod in scene.pods if pod.uid != "two"))
    assert (await asking.do("hear"))[0] == NOT_NEEDED
    assert scene.queued() == []
    assert first.pid in scene.daemon.clients


async def test_who_speaks_while_it_waits_is_not_heard_and_its_end_is_seen(scene: Scene) -> None:
    await scene.computes("one")
    second = await scene.process("two")
    await second.do("ask", says_more=True)
    assert await second.do("hear") == [WAITING, 1, 1, 1]
    await second.do("hang_up")
    await until(lambda: state(scene.gpu).waiting == 0)
    assert refusals(scene.gpu) == []


async def test_an_attach_that_is_refused_leaves_the_place_to_the_next(scene: Scene) -> None:
    full = replace(
        container("two"), containers=[GrantedContainer(name="app", id="two", grant=replace(GRANT, contexts=1))]
    )
    scene.grant(container("one"), full, container("three"))
    first = await scene.computes("one")
    second = await scene.process("two")
    waiting, third = second.starts("attach"), (await scene.process("three")).starts("attach")
    await until(lambda: len(scene.queued()) == 2)
    scene.grant(
        container("one"), replace(full, containers=[GrantedContainer(name="app", id="two")]), container("three")
    )
    await scene.ends(first)
    assert not await waiting
    assert await is_in(third)


async def test_the_board_says_how_many_places_there_are(scene: Scene) -> None:
    def shown() -> int:
        return int.from_bytes(scene.gpu.board.read_bytes()[PLACES_AT : PLACES_AT + 8], "little")

    for places in (1, 7, 0):
        scene.grant(places=places)
        await until(lambda places=places: shown() == places)


async def test_what_is_told_of_places_names_their_holders(scene: Scene) -> None:
    before = boot_clock()
    await scene.computes("one")
    await scene.asks("two")
    await until(scene.queued)
    told = state(scene.gpu)
    assert told.places is not None
    [held], [queued] = told.places.held, told.queue
    assert (told.places.limit, held) == (1, PlaceHolder(pod_uid="one", container="app", since=held.since))
    assert before <= held.since <= queued.since <= boot_clock()
    assert (queued.container, queued.position, told.waiting) == ("app", 1, 1)


class Crowd:
    """Many containers by connections of this process: each connection is of the next one."""

    def __init__(self, count: int) -> None:
        self.uids = [f"crowd-{number}" for number in range(count)]
        self._next = 0

    def owners(self, pid: int) -> Sequence[Owner]:
        uid = pod_of(pid)
        if uid in ("one", "two"):
            return (Owner(uid, uid),)
        self._next += 1
        uid = self.uids[(self._next - 1) % len(self.uids)]
        return (Owner(uid, uid),)


async def spent(seconds: float) -> float:
    """Of the processor, by this process, which the broker runs in."""
    before = time.process_time()
    await asyncio.sleep(seconds)
    return time.process_time() - before


async def test_two_hundred_containers_wait_for_next_to_nothing(gpu: GpuDir, daemon: FakeDaemon) -> None:
    crowd, scene = Crowd(200), Scene(gpu, daemon)
    scene.grant(container("one"), *(container(uid, namespace=uid) for uid in crowd.uids))
    async with serving(gpu, owners=crowd.owners, clock=scene.clock):
        await until(gpu.attach_control.exists)
        await scene.computes("one")
        alone = await spent(2)
        waiting = []
        for _ in crowd.uids:
            sock = await asyncio.to_thread(connect, gpu.attach_control)
            assert await asyncio.to_thread(sock.recv, 64) == GREETING
            sock.send(CREDENTIALS)
            sock.send(b"\x04\0\x70\x67")
            waiting.append(sock)
        await until(lambda: state(gpu).waiting == 200)
        await asyncio.sleep(2 * RETRY_SECONDS)  # the positions are told
        crowded = await spent(2)
        for sock in waiting:
            sock.close()
        await until(lambda: state(gpu).waiting == 0)
        await scene.end()
    assert crowded - alone < 0.1


SIMULATED = """
import sys
from pathlib import Path
from gpushare.simulation.place import wait_for_place
print(wait_for_place(str(Path(sys.argv[1]).parent)))
"""


async def test_the_simulated_client_waits_as_the_library_does_and_says_so(scene: Scene) -> None:
    first, command = (
        await scene.computes("one"),
        [sys.executable, "-c", SIMULATED, str(scene.gpu.attach_control), "two"],
    )
    pipe = asyncio.subprocess.PIPE
    second = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    await until(lambda: scene.queued() == ["two"])
    await scene.ends(first)
    said, told = await second.communicate()
    assert said == b"True\n"
    assert told.startswith(
        b"gpushare: this program waits for a place on the GPU: number 1 of 1 that wait; all 1 places"
    )
    assert told.count(b"\n") == 2
