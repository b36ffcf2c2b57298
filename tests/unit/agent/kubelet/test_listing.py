"""The list that the kubelet gets, allocations that it does not show yet, and the ids that it should choose."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.kubelet.listing import (
    PENDING_SECONDS,
    WITHDRAWN_SECONDS,
    Listing,
    OfferedDevice,
    PendingAllocations,
    PlaceDemand,
    preferred_slots,
    settled,
)
from gpushare.api import names
from gpushare.api.gpushare import Placement

A, B = OfferedDevice("GPU-1::0", True, 1), OfferedDevice("GPU-1::1", True, None)
UNHEALTHY_B = replace(B, healthy=False)
SLOTS = st.integers(0, 60)
DEVICE_IDS = st.builds(names.slot_id, st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), SLOTS) | st.sampled_from(
    ["odd", ""]
)
LATER = 10.0 + WITHDRAWN_SECONDS


def shrunk() -> Listing:
    """B was withdrawn at 10 s."""
    listing = Listing()
    listing.offer([A, B], 5.0)
    listing.offer([A], 10.0)
    return listing


def test_a_withdrawn_device_is_listed_as_unhealthy_before_it_vanishes() -> None:
    listing = shrunk()
    assert listing.devices() == [A, UNHEALTHY_B]
    listing.settle((), LATER)
    assert listing.devices() == [A]


def test_it_stays_by_a_reading_that_began_too_early() -> None:
    listing = shrunk()
    listing.settle((), LATER - 0.1)
    assert listing.devices() == [A, UNHEALTHY_B]


def test_it_stays_while_the_kubelet_can_allocate_it_or_has_handed_it_out() -> None:
    listing = shrunk()
    listing.settle({B.id}, LATER + 60)
    assert listing.devices() == [A, UNHEALTHY_B]


def test_an_offer_made_again_is_as_it_is_offered_and_withdrawn_anew_later() -> None:
    listing = shrunk()
    listing.offer([A, B], 20.0)
    assert listing.devices() == [A, B]
    listing.offer([A], 30.0)
    listing.settle((), LATER)
    assert listing.devices() == [A, UNHEALTHY_B]


def test_the_time_counts_from_the_withdrawal_not_from_the_latest_offer() -> None:
    listing = shrunk()
    listing.offer([], 20.0)
    listing.settle((), LATER)
    assert listing.devices() == [replace(A, healthy=False)]


IDS = st.frozensets(st.sampled_from(["a", "b", "c", "d"]))
EVENTS = st.lists(st.tuples(st.floats(0, 40), IDS, st.booleans()), max_size=30)


@given(EVENTS)
def test_no_id_vanishes_within_the_time_nor_while_it_is_named(events: list[tuple[float, frozenset[str], bool]]) -> None:
    listing, now, healthy_at = Listing(), 0.0, {}
    for passed, ids, is_offer in events:
        now += passed
        before = {device.id for device in listing.devices()}
        if is_offer:
            listing.offer([OfferedDevice(device_id, True, None) for device_id in sorted(ids)], now)
        else:
            listing.settle(ids, now)
        listed = {device.id: device.healthy for device in listing.devices()}
        for device_id in before - listed.keys():
            assert not is_offer
            assert device_id not in ids
            assert now >= healthy_at[device_id] + WITHDRAWN_SECONDS
        healthy_at.update({device_id: now for device_id, healthy in listed.items() if healthy})


@pytest.mark.parametrize(
    ("sentence", "listed", "started", "expected"),
    [
        ("listed by a reading that began later: the kubelet's word holds from now on", True, 100.1, True),
        ("a reading that began before the allocation lists the pod that had the id before", True, 99.9, False),
        ("and one that began at the same instant may", True, 100.0, False),
        ("a later reading without it may have come before the kubelet wrote it down", False, 100.1, False),
        ("a minute later an id without a pod is free", False, 100.1 + PENDING_SECONDS, True),
        ("and not a moment before", False, 100.0 + PENDING_SECONDS, False),
    ],
)
def test_settled(sentence: str, listed: bool, started: float, expected: bool) -> None:
    assert settled(100.0, listed, started) is expected, sentence


def test_each_id_is_settled_by_itself() -> None:
    pending = PendingAllocations()
    pending.add(["a", "b"], 1.0)
    pending.settle({"b", "of nobody here"}, 2.0)
    assert pending.ids() == {"a"}


def test_a_reading_of_the_pod_before_does_not_settle_its_id() -> None:
    pending = PendingAllocations()
    pending.add(["a"], 1.0)
    pending.add(["a"], 3.0)
    pending.settle({"a"}, 2.0)
    assert pending.ids() == {"a"}
    pending.settle({"a"}, 4.0)
    assert pending.ids() == frozenset()


@given(st.sets(DEVICE_IDS, max_size=40), st.sets(DEVICE_IDS, max_size=5), st.integers(-1, 50))
def test_preferred_ids_are_available_unique_and_include_the_musts(
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


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement.SPREAD, ["GPU-a::0", "GPU-b::0", "GPU-a::1", "GPU-b::1", "GPU-a::2", "GPU-b::2"]),
        (Placement.PACK, ["GPU-a::0", "GPU-a::1", "GPU-a::2", "GPU-b::0", "GPU-b::1", "GPU-b::2"]),
    ],
)
def test_a_shares_gpus_fill_evenly_or_one_after_the_other(placement: Placement, expected: list[str]) -> None:
    free = [names.slot_id(gpu, slot) for gpu in ("GPU-a", "GPU-b") for slot in range(3)]
    taken = []
    for _ in range(6):
        chosen = preferred_slots(free, [], 1, placement)[0]
        free.remove(chosen)
        taken.append(chosen)
    assert taken == expected


def test_a_share_that_packs_fills_a_used_gpu_before_a_free_one() -> None:
    free = ["GPU-a::0", "GPU-a::1", "GPU-b::1"]
    assert preferred_slots(free, [], 1, Placement.PACK) == ["GPU-b::1"]
    assert preferred_slots(free, [], 1, Placement.SPREAD) == ["GPU-a::0"]


@pytest.mark.parametrize("placement", list(Placement))
def test_the_slots_of_those_whom_the_kubelet_forgot_are_nobodys_choice(placement: Placement) -> None:
    """Of GPU-a the kubelet has forgotten three of four: it sees four free ids there, and one container has room."""
    free, taken = [names.slot_id(gpu, slot) for gpu in ("GPU-a", "GPU-b") for slot in range(4)], []
    while chosen := preferred_slots(free, [], 1, placement, beyond={"GPU-a": 3}):
        free.remove(chosen[0])
        taken.append(chosen[0].partition("::")[0])
    assert sorted(taken) == ["GPU-a", *["GPU-b"] * 4]


FREE = PlaceDemand(wanted=3, places=8)
FREER = PlaceDemand(wanted=1, places=8)
FULL = PlaceDemand(wanted=8, places=8)
LONG = PlaceDemand(wanted=12, places=8)


@pytest.mark.parametrize(
    ("sentence", "placement", "demand", "expected"),
    [
        ("fewest that compute or wait", Placement.SPREAD, {"GPU-a": FREE, "GPU-b": FREER}, "GPU-b::0"),
        ("the fuller one that has a place", Placement.PACK, {"GPU-a": FREE, "GPU-b": FREER}, "GPU-a::0"),
        ("a free place before a full GPU", Placement.PACK, {"GPU-a": FULL, "GPU-b": FREER}, "GPU-b::0"),
        ("the shortest queue", Placement.SPREAD, {"GPU-a": LONG, "GPU-b": FULL}, "GPU-b::0"),
        ("also where the share packs", Placement.PACK, {"GPU-a": LONG, "GPU-b": FULL}, "GPU-b::0"),
        ("alike: the one with most free slots", Placement.SPREAD, {"GPU-a": FREE, "GPU-b": FREE}, "GPU-a::0"),
    ],
)
def test_with_a_queue_a_new_pod_goes_where(
    sentence: str, placement: Placement, demand: dict[str, PlaceDemand], expected: str
) -> None:
    free = ["GPU-a::0", "GPU-a::1", "GPU-a::2", "GPU-b::0", "GPU-b::1"]
    assert preferred_slots(free, [], 1, placement, demand) == [expected], sentence
