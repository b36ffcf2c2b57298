"""Containers that got a slot of a GPU that has no more."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.conditions import DaemonReason
from gpushare.node.edits import ContainerEdits
from gpushare.node.late import Room, comes_late, waits_for
from gpushare.node.slots import SlotHooks
from gpushare.node.verdict import Verdict


@pytest.mark.parametrize(
    ("sentence", "slot", "held", "per_gpu", "expected"),
    [
        ("a free slot of a GPU with room", 1, {0}, 2, False),
        ("a slot that the last reading still shows with the pod before", 1, {0, 1}, 2, False),
        ("one more than the share has", 2, {0, 1}, 2, True),
        ("a freed slot of a share that shrank", 3, {0, 1, 2, 3}, 2, True),
        ("a high slot counts as one, not by its number", 7, {5}, 2, False),
        ("a share that is not known bounds nothing", 3, {0, 1, 2, 3}, None, False),
    ],
)
def test_comes_late(sentence: str, slot: int, held: set[int], per_gpu: int | None, expected: bool) -> None:
    assert comes_late(slot, Room(frozenset(held), per_gpu)) is expected, sentence


@pytest.mark.parametrize(
    ("sentence", "late", "held", "per_gpu", "expected"),
    [
        ("as many others as the share has: one of them must end", {2}, {0, 1, 2}, 2, 2),
        ("more than it has, after it shrank", {3}, {0, 1, 2, 3}, 1, 3),
        ("one has ended", {2}, {1, 2}, 2, None),
        ("where all are late they do not wait for each other", {0, 1, 2}, {0, 1, 2}, 2, None),
        ("the share has grown again", {2}, {0, 1, 2}, 3, None),
        ("the share is not known any more", {2}, {0, 1, 2}, None, None),
    ],
)
def test_waits_for(sentence: str, late: set[int], held: set[int], per_gpu: int | None, expected: int | None) -> None:
    assert waits_for(late, Room(frozenset(held), per_gpu)) == expected, sentence


@dataclass
class Gpu:
    """A GPU whose containers get, start with and leave slots in any order, while its share's perGpu changes."""

    per_gpu: int = 4
    started: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    verdict: Verdict = field(default_factory=lambda: Verdict(DaemonReason.READY))

    def __post_init__(self) -> None:
        self.hooks = SlotHooks("a", lambda *_: ContainerEdits(), lambda *_: self.verdict, lambda *_: self.room())

    def room(self) -> Room:
        return Room(frozenset(self.started | self.waiting), self.per_gpu)

    def allocate(self, slot: int) -> None:
        self.hooks.allocated([f"GPU-1::{slot}"])
        self.waiting.add(slot)

    async def start(self, slot: int) -> str | None:
        """Asks for the start of a container that holds the slot."""
        why = await self.hooks.not_ready([f"GPU-1::{slot}"])
        if why is None:
            self.waiting.discard(slot)
            self.started.add(slot)
        return why

    def end(self, slot: int) -> None:
        self.started.discard(slot)
        self.waiting.discard(slot)


EVENTS = st.lists(st.tuples(st.sampled_from(["allocate", "start", "end"]), st.integers(0, 7)), max_size=40)


@given(EVENTS, st.integers(1, 4))
async def test_after_a_share_shrank_only_those_who_were_there_may_be_too_many(
    events: list[tuple[str, int]], per_gpu: int
) -> None:
    gpu = Gpu(per_gpu=8)
    for slot in range(8):
        gpu.allocate(slot)
        await gpu.start(slot)
    gpu.per_gpu = per_gpu
    for what, slot in events:
        before = len(gpu.started)
        if what == "end":
            gpu.end(slot)
        elif what == "allocate" and slot not in gpu.room().held:
            gpu.allocate(slot)
        elif what == "start" and slot in gpu.room().held:
            assert await gpu.start(slot) is None or slot not in gpu.started
        assert len(gpu.started) <= max(before, per_gpu)
    for slot in sorted(gpu.waiting):
        await gpu.start(slot)
    assert not gpu.waiting or len(gpu.started) >= per_gpu


async def test_a_late_container_waits_and_says_why_and_is_not_late_again_once_it_may_start() -> None:
    gpu = Gpu(per_gpu=2, started={0, 1})
    gpu.allocate(2)
    assert await gpu.start(2) == (
        "GPU GPU-1: 2 containers hold slots of GpuShare a, which has 2 on each GPU now; "
        "waiting until enough of them have ended"
    )
    gpu.end(0)
    assert await gpu.start(2) is None
    gpu.per_gpu = 1
    assert await gpu.start(2) is None


async def test_a_container_is_not_late_for_the_one_that_had_its_slot_before() -> None:
    gpu = Gpu(per_gpu=1, started={0})
    gpu.allocate(1)
    gpu.end(0)
    gpu.end(1)
    gpu.allocate(1)
    gpu.per_gpu = 0
    assert await gpu.start(1) is None


async def test_a_late_container_stays_late_while_its_gpu_is_not_ready() -> None:
    gpu = Gpu(per_gpu=1, started={0}, verdict=Verdict(DaemonReason.STARTING, "soon"))
    gpu.allocate(1)
    assert await gpu.start(1) == "GPU GPU-1: Starting: soon"
    gpu.verdict = Verdict(DaemonReason.READY)
    assert "waiting until enough" in (await gpu.start(1) or "")
