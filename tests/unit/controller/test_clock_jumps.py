"""What waits goes on waiting as long as before, whatever the time of day is set to."""

from datetime import UTC, datetime, timedelta

import pytest

from gpushare.api.gpunode import Assignment
from gpushare.controller.clock_jumps import ClockJumps

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURS = timedelta(hours=3)


def waiting(since: str | None = "2026-03-01T11:50:00Z", uuid: str = "GPU-1") -> Assignment:
    return Assignment(uuid=uuid, share="a", draining=True, waiting_since=since)


@pytest.mark.parametrize("jump", [HOURS, -HOURS], ids=["forward", "back"])
def test_a_wait_moves_with_the_time_of_day_until_that_is_written(jump: timedelta) -> None:
    jumps = ClockJumps()
    assert jumps.look(NOON, 0.0, [waiting()]) == {}
    key = ("GPU-1", "2026-03-01T11:50:00Z")
    assert jumps.look(NOON + jump, 10.0, [waiting()]) == {key: jump - timedelta(seconds=10)}
    assert jumps.look(NOON + jump, 10.0, [waiting()]) == {key: jump - timedelta(seconds=10)}, "not written yet"
    assert jumps.look(NOON + jump, 10.0, [waiting("2026-03-01T14:49:50Z")]) == {}


def test_two_jumps_add_up_and_who_begins_to_wait_after_them_does_not_move() -> None:
    jumps = ClockJumps()
    jumps.look(NOON, 0.0, [waiting()])
    jumps.look(NOON + HOURS, 0.0, [waiting()])
    late = waiting("2026-03-01T15:00:00Z", "GPU-2")
    assert jumps.look(NOON + HOURS, 0.0, [waiting(), late]) == {("GPU-1", "2026-03-01T11:50:00Z"): HOURS}
    moved = jumps.look(NOON + 2 * HOURS, 0.0, [waiting(), late])
    assert moved == {("GPU-1", "2026-03-01T11:50:00Z"): 2 * HOURS, ("GPU-2", "2026-03-01T15:00:00Z"): HOURS}


def test_neither_a_small_correction_nor_a_long_pause_moves_a_wait() -> None:
    jumps = ClockJumps()
    jumps.look(NOON, 0.0, [waiting()])
    assert jumps.look(NOON + timedelta(seconds=59), 0.0, [waiting()]) == {}
    assert jumps.look(NOON + timedelta(hours=9, seconds=59), 9 * 3600.0, [waiting()]) == {}


def test_who_does_not_wait_does_not_move() -> None:
    jumps = ClockJumps()
    jumps.look(NOON, 0.0, [])
    assert jumps.look(NOON + HOURS, 0.0, [waiting(None)]) == {}
