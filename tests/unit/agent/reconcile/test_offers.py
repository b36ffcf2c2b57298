"""Which slots the kubelet is offered."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.reconcile.offers import GpuOffer, offered_slots

SLOTS = st.integers(0, 60)
HELD = st.sets(SLOTS, max_size=50)


@given(st.integers(0, 48), HELD, st.booleans(), st.booleans())
def test_held_slots_are_always_offered(per_gpu: int, held: set[int], accepting: bool, lost: bool) -> None:
    offered = offered_slots(per_gpu, held, accepting, lost)
    assert held <= offered.keys()
    assert all(healthy is not lost for healthy in offered.values())


@given(st.integers(0, 48), HELD, st.booleans())
def test_slots_are_as_many_as_the_share_says_unless_more_are_held(per_gpu: int, held: set[int], lost: bool) -> None:
    offered = offered_slots(per_gpu, held, True, lost)
    assert len(offered) == (len(held) if lost else max(per_gpu, len(held)))


@given(st.integers(0, 48), HELD)
def test_free_slots_are_withdrawn_where_none_is_accepted(per_gpu: int, held: set[int]) -> None:
    assert offered_slots(per_gpu, held, False, False).keys() == held


@given(st.integers(1, 48), st.sets(st.integers(0, 47), max_size=48))
def test_a_slot_above_the_bound_is_offered_only_while_it_is_held(per_gpu: int, held: set[int]) -> None:
    fresh = offered_slots(per_gpu, held, True, False).keys() - held
    assert all(slot < per_gpu for slot in fresh)


def test_after_shrinking_the_pods_on_high_slots_count() -> None:
    offered = offered_slots(4, {5, 6, 7}, True, False)
    assert list(offered) == [0, 5, 6, 7]


@given(st.integers(0, 48), HELD, HELD)
def test_a_slot_that_the_kubelet_forgot_counts_and_is_given_to_nobody(
    per_gpu: int, held: set[int], forgotten: set[int]
) -> None:
    offered = offered_slots(per_gpu, held | forgotten, True, False, forgotten)
    assert {slot for slot, healthy in offered.items() if not healthy} == forgotten
    assert len(offered) == max(per_gpu, len(held | forgotten))


@given(st.integers(1, 48), HELD, HELD, st.booleans())
def test_the_scheduler_counts_nobody_twice_whom_the_kubelet_forgot(
    per_gpu: int, held: set[int], forgotten: set[int], accepting: bool
) -> None:
    """It takes each running pod, forgotten or not, off the healthy slots."""
    holders = frozenset(held | forgotten)
    offer = GpuOffer("GPU-0", per_gpu, holders, accepting, forgotten=frozenset(forgotten))
    room = sum(offer.slots().values()) - len(holders)
    assert room == (max(per_gpu - len(holders), -len(forgotten)) if accepting else -len(forgotten))


def test_a_whole_gpu_whose_holder_is_forgotten_is_one_device() -> None:
    whole = GpuOffer("GPU-0", 1, frozenset({0}), True, whole=True, forgotten=frozenset({0}))
    assert whole.slots() == {0: False}
