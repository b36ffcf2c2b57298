from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.queue.waits import Waits
from gpushare.mps.wire import WAIT_BUCKETS, WaitBucket, WaitTimes

SECONDS = st.lists(st.sampled_from([0.0, *WAIT_BUCKETS, 0.5, 90.0, 1e6]), max_size=8)


def of(seconds: list[float]) -> Waits:
    waits = Waits()
    for wait in seconds:
        waits.add(wait)
    return waits


@given(SECONDS)
def test_each_bucket_has_the_waits_up_to_its_bound(seconds: list[float]) -> None:
    times = of(seconds).times
    assert [bucket.count for bucket in times.buckets] == [
        sum(wait <= most for wait in seconds) for most in WAIT_BUCKETS
    ]
    assert (times.count, times.seconds) == (len(seconds), sum(seconds))


@given(SECONDS, SECONDS)
def test_the_waits_of_an_earlier_broker_are_added_to(before: list[float], after: list[float]) -> None:
    waits = Waits()
    waits.restore(of(before).times)
    for wait in after:
        waits.add(wait)
    assert waits.times == of([*before, *after]).times


def test_a_broker_that_counted_by_other_buckets_is_not_added_to() -> None:
    waits = Waits()
    waits.restore(WaitTimes(buckets=[WaitBucket(seconds=3.0, count=1)], count=1, seconds=2.0))
    assert waits.times == Waits().times
