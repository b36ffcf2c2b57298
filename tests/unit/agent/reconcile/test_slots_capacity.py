"""Containers that have a slot of a GPU that is full."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.reconcile.slots import SlotHooks, StartCapacity, waits_for
from gpushare.api.conditions import DaemonReason


@pytest.mark.parametrize(
    ("sentence", "unstarted", "held", "per_gpu", "expected"),
    [
        ("fewer others than the share has", {1}, {0, 1}, 2, None),
        ("as many others as the share has: one of them must end", {2}, {0, 1, 2}, 2, 2),
        ("more than it has, after it shrank", {3}, {0, 1, 2, 3}, 1, 3),
        ("a high slot counts as one, not by its number", {7}, {5, 7}, 2, None),
        ("a slot that the last reading still shows with the container before", {1}, {0, 1}, 2, None),
        ("where none has started they do not wait for each other", {0, 1, 2}, {0, 1, 2}, 2, None),
        ("one that ended before it started is nobody", {2, 3}, {0, 2}, 2, None),
        ("the share is not known any more", {2}, {0, 1, 2}, None, None),
    ],
)
def test_waits_for(
    sentence: str, unstarted: set[int], held: set[int], per_gpu: int | None, expected: int | None
) -> None:
    assert waits_for(unstarted, StartCapacity(frozenset(held), per_gpu)) == expected, sentence


@dataclass
class Gpu:
    """A GPU whose containers get, start with and leave slots in any order, while its share's perGpu changes."""

    per_gpu: int = 4
    started: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    verdict: Readiness = field(default_factory=lambda: Readiness(DaemonReason.READY))

    def __post_init__(self) -> None:
        self.hooks = SlotHooks("a", lambda *_: ContainerEdits(), lambda *_: self.verdict, lambda *_: self.room())

    def room(self) -> StartCapacity:
        return StartCapacity(frozenset(self.started | self.waiting), self.per_gpu)

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


EVENTS = st.lists(
    st.tuples(st.sampled_from(["allocate", "start", "start", "end", "resize"]), st.integers(0, 7)), max_size=60
)


@given(EVENTS)
@example([("allocate", 0), ("allocate", 1), ("start", 0), ("resize", 1), ("start", 1)])
async def test_a_container_starts_only_while_fewer_hold_the_gpu_than_its_share_has_now(
    events: list[tuple[str, int]],
) -> None:
    gpu = Gpu(per_gpu=8)
    for what, slot in events:
        held, running = gpu.room().held, set(gpu.started)
        if what == "resize":
            gpu.per_gpu = max(slot, 1)
        elif what == "end":
            gpu.end(slot)
        elif what == "allocate" and slot not in held:
            gpu.allocate(slot)
        elif what == "start" and slot in held:
            let = await gpu.start(slot) is None
            assert let is (slot in running or len(running) < gpu.per_gpu)


async def test_a_container_that_waits_says_why_and_is_not_held_back_again_once_it_has_started() -> None:
    gpu = Gpu(per_gpu=2, started={0, 1})
    gpu.allocate(2)
    assert await gpu.start(2) == (
        "GPU GPU-1: 2 containers that have started hold slots of GpuShare a, which has 2 on each GPU now; "
        "waiting until enough of them have ended"
    )
    gpu.end(0)
    assert await gpu.start(2) is None
    gpu.per_gpu = 1
    assert await gpu.start(2) is None


async def test_a_container_whose_share_shrank_before_it_started_waits_though_it_came_in_time() -> None:
    gpu = Gpu(per_gpu=2, started={0})
    gpu.allocate(1)
    gpu.per_gpu = 1
    assert "which has 1 on each GPU now" in (await gpu.start(1) or "")
    gpu.per_gpu = 2
    assert await gpu.start(1) is None


async def test_a_container_has_not_started_because_the_one_before_it_with_its_slot_had() -> None:
    gpu = Gpu(per_gpu=2, started={0})
    gpu.allocate(1)
    assert await gpu.start(1) is None
    gpu.end(1)
    gpu.allocate(1)
    gpu.per_gpu = 1
    assert await gpu.start(1) is not None


async def test_a_container_of_an_earlier_agent_counts_as_started() -> None:
    gpu = Gpu(per_gpu=1, started={0, 1})
    assert await gpu.start(1) is None


async def test_a_container_still_has_to_wait_for_room_when_its_gpu_gets_ready() -> None:
    gpu = Gpu(per_gpu=1, started={0}, verdict=Readiness(DaemonReason.STARTING, "soon"))
    gpu.allocate(1)
    assert await gpu.start(1) == "GPU GPU-1: Starting: soon"
    gpu.verdict = Readiness(DaemonReason.READY)
    assert "waiting until enough" in (await gpu.start(1) or "")
