"""What the kubelet is told of devices that are not offered any more."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.kubelet.listing import WITHDRAWN_SECONDS, Listing, OfferedDevice

A, B = OfferedDevice("GPU-1::0", True, 1), OfferedDevice("GPU-1::1", True, None)
UNHEALTHY_B = replace(B, healthy=False)
LATER = 10.0 + WITHDRAWN_SECONDS


def shrunk() -> Listing:
    """B was withdrawn at 10 s."""
    listing = Listing()
    listing.offer([A, B], 5.0)
    listing.offer([A], 10.0)
    return listing


def test_a_withdrawn_device_is_told_as_unhealthy_before_it_vanishes() -> None:
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
        told = {device.id: device.healthy for device in listing.devices()}
        for device_id in before - told.keys():
            assert not is_offer
            assert device_id not in ids
            assert now >= healthy_at[device_id] + WITHDRAWN_SECONDS
        healthy_at.update({device_id: now for device_id, healthy in told.items() if healthy})
