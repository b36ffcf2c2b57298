"""How often a status is written."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.reporting import EARNED_EVERY, SAVED, Throttle

INTERVAL = 10.0


def test_the_first_change_after_quiet_is_written_at_once() -> None:
    throttle = Throttle(INTERVAL, counted_at=100.0, last_write=0.0)
    assert throttle.wait(100.0, urgent=False) == 0


def test_the_next_ordinary_change_waits_ten_seconds() -> None:
    throttle = Throttle(INTERVAL, counted_at=0.0)
    throttle.wrote(100.0)
    assert throttle.wait(103.0, urgent=False) == 7.0
    assert throttle.wait(110.0, urgent=False) == 0


def test_a_change_of_readiness_does_not_wait_for_the_last_write() -> None:
    throttle = Throttle(INTERVAL, counted_at=0.0)
    throttle.wrote(100.0)
    assert throttle.wait(101.0, urgent=True) == 0


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=300))
def test_whatever_flaps_is_written_once_in_two_seconds_on_average(pauses: list[float]) -> None:
    throttle, now, written = Throttle(INTERVAL), 0.0, 0
    for pause in pauses:
        now += pause
        if throttle.wait(now, urgent=True) == 0:
            throttle.wrote(now)
            written += 1
    assert written <= now / EARNED_EVERY + SAVED + 1e-6
