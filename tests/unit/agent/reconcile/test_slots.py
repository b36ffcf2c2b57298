"""Which slots the kubelet is offered, and how many started containers one that has a slot waits for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.reconcile.slots import StartCapacity, offered_slots, waits_for

SLOTS = st.integers(0, 60)
HELD = st.sets(SLOTS, max_size=50)


@given(st.integers(0, 48), HELD, st.booleans(), st.booleans())
def test_held_slots_are_always_offered_and_no_slot_twice(
    per_gpu: int, held: set[int], accepting: bool, lost: bool
) -> None:
    offered = offered_slots(per_gpu, held, accepting, lost)
    numbers = [item.slot for item in offered]
    assert held <= set(numbers)
    assert len(numbers) == len(set(numbers))
    assert all(item.healthy is not lost for item in offered)


@given(st.integers(0, 48), HELD, st.booleans())
def test_slots_are_as_many_as_the_share_says_unless_more_are_held(per_gpu: int, held: set[int], lost: bool) -> None:
    offered = offered_slots(per_gpu, held, True, lost)
    assert len(offered) == (len(held) if lost else max(per_gpu, len(held)))


@given(st.integers(0, 48), HELD)
def test_free_slots_are_withdrawn_where_none_is_accepted(per_gpu: int, held: set[int]) -> None:
    assert {item.slot for item in offered_slots(per_gpu, held, False, False)} == held


@given(st.integers(1, 48), st.sets(st.integers(0, 47), max_size=48))
def test_a_slot_above_the_bound_is_offered_only_while_it_is_held(per_gpu: int, held: set[int]) -> None:
    fresh = {item.slot for item in offered_slots(per_gpu, held, True, False)} - held
    assert all(slot < per_gpu for slot in fresh)


def test_after_shrinking_the_pods_on_high_slots_count() -> None:
    offered = offered_slots(4, {5, 6, 7}, True, False)
    assert [item.slot for item in offered] == [0, 5, 6, 7]


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
