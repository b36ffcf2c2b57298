"""What the kubelet is answered about a share's slots, such as which containers may start on a full GPU."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.agent.kubelet.slots import AllocationSources, SlotDevices, waits_for
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare, Placement
from gpushare.mps.wire import PlaceHolder, PlacesInUse
from tests.unit.agent.decided_gpus import decided
from tests.unit.agent.fake_node import SHARE
from tests.unit.agent.reconcile.test_places import BROKER, files

CLIENTS = SHARE["spec"]["clients"]


@dataclass
class Gpu:
    """A GPU whose containers get, start with and leave slots in any order, while its share's perGpu changes."""

    per_gpu: int = 4
    placement: Placement | None = None
    started: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    readiness: Readiness = field(default_factory=lambda: Readiness(DaemonReason.READY))

    def __post_init__(self) -> None:
        self.slots = SlotDevices("a", self.sources())

    def sources(self) -> AllocationSources:
        return AllocationSources(
            node="n",
            devices=None,  # type: ignore[arg-type]
            views=dict,
            decisions=lambda: self.decisions,
            shares=lambda: self.shares,
            held=self.held,
            read_kubelet=lambda: None,
        )

    @property
    def decisions(self) -> dict[str, GpuDecision]:
        return {"GPU-1": decided("GPU-1", readiness=self.readiness, per_gpu=self.per_gpu)}

    @property
    def shares(self) -> dict[str, GpuShare]:
        clients = {**CLIENTS, "perGpu": self.per_gpu, "placement": self.placement}
        return {"a": GpuShare.model_validate({**SHARE, "spec": {"clients": clients}})}

    def held(self, share: str, uuid: str) -> frozenset[int]:
        assert (share, uuid) == ("a", "GPU-1")
        return frozenset(self.started | self.waiting)

    def allocate(self, slot: int) -> None:
        self.slots.allocated([f"GPU-1::{slot}"])
        self.waiting.add(slot)

    def start(self, slot: int) -> str | None:
        """Asks for the start of a container that holds the slot."""
        why = self.slots.not_ready([f"GPU-1::{slot}"])
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
def test_a_container_starts_only_while_the_gpu_has_room(
    events: list[tuple[str, int]],
) -> None:
    gpu = Gpu(per_gpu=8)
    for what, slot in events:
        held, running = gpu.held("a", "GPU-1"), set(gpu.started)
        if what == "resize":
            gpu.per_gpu = max(slot, 1)
        elif what == "end":
            gpu.end(slot)
        elif what == "allocate" and slot not in held:
            gpu.allocate(slot)
        elif what == "start" and slot in held:
            let = gpu.start(slot) is None
            assert let is (slot in running or len(running) < gpu.per_gpu)


def test_a_container_that_has_started_is_not_held_back_again() -> None:
    gpu = Gpu(per_gpu=2, started={0, 1})
    gpu.allocate(2)
    assert gpu.start(2) == (
        "GPU GPU-1: 2 slots of GpuShare a are held by containers that have started, and it has 2 on each GPU now; "
        "waiting until enough of them have ended"
    )
    gpu.end(0)
    assert gpu.start(2) is None
    gpu.per_gpu = 1
    assert gpu.start(2) is None


def test_a_container_whose_share_shrank_before_its_start_waits() -> None:
    gpu = Gpu(per_gpu=2, started={0})
    gpu.allocate(1)
    gpu.per_gpu = 1
    assert "it has 1 on each GPU now" in (gpu.start(1) or "")
    gpu.per_gpu = 2
    assert gpu.start(1) is None


def test_a_container_is_not_started_since_its_slots_last_one_was() -> None:
    gpu = Gpu(per_gpu=2, started={0})
    gpu.allocate(1)
    assert gpu.start(1) is None
    gpu.end(1)
    gpu.allocate(1)
    gpu.per_gpu = 1
    assert gpu.start(1) is not None


def test_a_container_of_an_earlier_agent_counts_as_started() -> None:
    gpu = Gpu(per_gpu=1, started={0, 1})
    assert gpu.start(1) is None


def test_a_container_still_has_to_wait_for_room_when_its_gpu_gets_ready() -> None:
    gpu = Gpu(per_gpu=1, started={0}, readiness=Readiness(DaemonReason.STARTING, "soon"))
    gpu.allocate(1)
    assert gpu.start(1) == "GPU GPU-1: Starting: soon"
    gpu.readiness = Readiness(DaemonReason.READY)
    assert "waiting until enough" in (gpu.start(1) or "")


def test_a_share_prefers_a_gpu_by_placement_and_spreads_when_gone() -> None:
    gpu, free = Gpu(), ["GPU-1::0", "GPU-2::0", "GPU-2::1"]
    assert gpu.slots.prefer(free, [], 1) == ["GPU-2::0"]
    gpu.placement = Placement.PACK
    assert gpu.slots.prefer(free, [], 1) == ["GPU-1::0"]
    assert SlotDevices("gone", gpu.sources()).prefer(free, [], 1) == ["GPU-2::0"]


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
    assert waits_for(unstarted, frozenset(held), per_gpu) == expected, sentence


def test_places_in_use_and_who_waits_decide_which_gpu_a_slot_is_of() -> None:
    held = [PlaceHolder(pod_uid="u", container="app", since=1.0)]
    busy = structs.replace(BROKER, places=PlacesInUse(limit=1, held=held), waiting=2)
    decisions = {
        "GPU-0": replace(decided("GPU-0", per_gpu=9), taken=files(busy)),
        "GPU-1": replace(decided("GPU-1", per_gpu=9), taken=files(BROKER)),
    }
    slots = SlotDevices("a", replace(Gpu().sources(), decisions=lambda: decisions))
    assert slots.prefer(["GPU-0::1", "GPU-0::2", "GPU-1::5"], [], 1) == ["GPU-1::5"]
