"""What a share's hooks answer, such as which containers may start on a full GPU, and how long that takes."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.hooks import MeteredHooks, SlotHooks
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.reconcile.slots import GpuOffer
from gpushare.agent.status.meters import NodeMeters
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare, Placement
from tests.unit.agent.fake_node import SHARE

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
        self.hooks = SlotHooks("a", self)  # type: ignore[arg-type]

    # As the hooks see it: the state of an agent with this GPU, and its cache.

    @property
    def cache(self) -> "Gpu":
        return self

    node: str = "n"
    on_disk: tuple[str, ...] = ("GPU-1",)

    @property
    def decisions(self) -> dict[str, GpuDecision]:
        plan = GpuPlan("GPU-1", "a", GpuStage.SERVE, None)
        held = frozenset[int]()
        return {"GPU-1": GpuDecision(plan, self.readiness, held, False, GpuOffer("GPU-1", self.per_gpu, held, True))}

    @property
    def shares(self) -> dict[str, GpuShare]:
        clients = {**CLIENTS, "perGpu": self.per_gpu, "placement": self.placement}
        return {"a": GpuShare.model_validate({**SHARE, "spec": {"clients": clients}})}

    def held(self, share: str, uuid: str) -> frozenset[int]:
        assert (share, uuid) == ("a", "GPU-1")
        return frozenset(self.started | self.waiting)

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
        held, running = gpu.held("a", "GPU-1"), set(gpu.started)
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
    gpu = Gpu(per_gpu=1, started={0}, readiness=Readiness(DaemonReason.STARTING, "soon"))
    gpu.allocate(1)
    assert await gpu.start(1) == "GPU GPU-1: Starting: soon"
    gpu.readiness = Readiness(DaemonReason.READY)
    assert "waiting until enough" in (await gpu.start(1) or "")


class Hooks:
    """A share's hooks as a test sets them."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.lost = False

    def edits(self, device_ids: Any) -> ContainerEdits:
        if self.lost:
            raise LookupError("it is gone")
        return ContainerEdits()

    def allocated(self, device_ids: Any) -> None:
        pass

    def prefer(self, available: Any, must_include: Any, size: int) -> list[str]:
        return sorted(available)[:size]

    async def not_ready(self, device_ids: Any) -> str | None:
        return self.why


async def test_the_time_from_allocate_to_ready_is_taken_once_for_each_allocation() -> None:
    registry, hooks, now = CollectorRegistry(), Hooks(), 0.0
    metered = MeteredHooks(hooks, NodeMeters(registry), clock=lambda: now)
    metered.edits(["x::0"])
    metered.allocated(["x::0"])
    hooks.why, now = "the daemon starts", 3.0
    assert await metered.not_ready(["x::0"]) == "the daemon starts"
    hooks.why, now = None, 4.0
    assert await metered.not_ready(["x::0"]) is None
    now = 90.0  # the container starts again, in the allocation that it had
    assert await metered.not_ready(["x::0"]) is None
    value_of = registry.get_sample_value
    assert value_of("gpushare_allocation_ready_seconds_count") == 1
    assert value_of("gpushare_allocation_ready_seconds_sum") == 4.0
    assert value_of("gpushare_prestart_not_ready_total") == 1
    assert value_of("gpushare_allocate_duration_seconds_count") == 1


def test_a_refused_allocation_is_counted_and_refused_all_the_same() -> None:
    registry, hooks = CollectorRegistry(), Hooks()
    hooks.lost = True
    with pytest.raises(LookupError, match="it is gone"):
        MeteredHooks(hooks, NodeMeters(registry)).edits(["x::0"])
    assert registry.get_sample_value("gpushare_allocate_refused_total") == 1


def test_a_share_says_which_gpu_its_next_container_is_to_have_and_one_that_is_gone_spreads() -> None:
    gpu, free = Gpu(), ["GPU-1::0", "GPU-2::0", "GPU-2::1"]
    assert gpu.hooks.prefer(free, [], 1) == ["GPU-2::0"]
    gpu.placement = Placement.PACK
    assert gpu.hooks.prefer(free, [], 1) == ["GPU-1::0"]
    assert MeteredHooks(gpu.hooks, NodeMeters(CollectorRegistry())).prefer(free, [], 1) == ["GPU-1::0"]
    assert SlotHooks("gone", gpu).prefer(free, [], 1) == ["GPU-2::0"]  # type: ignore[arg-type]
