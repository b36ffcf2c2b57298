"""The rules of what is offered and preferred, for every GPU, share and moment."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.kubelet.preferred import preferred_slots
from gpushare.agent.reconcile.slots import offered_slots
from gpushare.api import names

SLOTS = st.integers(0, 60)
HELD = st.sets(SLOTS, max_size=50)
DEVICE_IDS = st.builds(names.slot_id, st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), SLOTS) | st.sampled_from(
    ["odd", ""]
)


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


@given(st.sets(DEVICE_IDS, max_size=40), st.sets(DEVICE_IDS, max_size=5), st.integers(-1, 50))
def test_preferred_ids_are_available_ones_without_repetition_that_include_what_must_be(
    available: set[str], must: set[str], size: int
) -> None:
    chosen = preferred_slots(sorted(available), sorted(must), size)
    assert len(chosen) == len(set(chosen))
    assert must <= set(chosen) <= available | must
    assert len(chosen) == max(len(must), min(size, len(available | must)))


@given(st.sets(DEVICE_IDS, min_size=1, max_size=40))
def test_the_gpu_with_most_free_ids_is_preferred(available: set[str]) -> None:
    def free(device_id: str) -> int:
        return sum(1 for other in available if other.rpartition("::")[0] == device_id.rpartition("::")[0])

    chosen = preferred_slots(sorted(available), [], 1)[0]
    if "::" in chosen:
        assert all(free(chosen) >= free(other) for other in available if "::" in other)
    else:
        assert all(free(other) <= 1 for other in available if "::" in other)


def test_a_share_s_gpus_fill_evenly() -> None:
    free = [names.slot_id(gpu, slot) for gpu in ("GPU-a", "GPU-b") for slot in range(3)]
    taken = []
    for _ in range(6):
        chosen = preferred_slots(free, [], 1)[0]
        free.remove(chosen)
        taken.append(chosen)
    assert taken == ["GPU-a::0", "GPU-b::0", "GPU-a::1", "GPU-b::1", "GPU-a::2", "GPU-b::2"]
