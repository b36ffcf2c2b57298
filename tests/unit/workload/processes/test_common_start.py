"""The common start of pods: the formats of its time, and the times that are refused."""

import pytest

from gpushare_workload.processes import common_start
from gpushare_workload.processes.stopping import Stop, StoppedError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("  ", None),
        ("1763726400", 1763726400.0),
        ("1763726400.5", 1763726400.5),
        ("2025-11-21T12:00:00Z", 1763726400.0),
        ("2025-11-21T12:00:00", 1763726400.0),
        ("2025-11-21T13:00:00+01:00", 1763726400.0),
    ],
)
def test_a_start_is_written_as_rfc_3339_or_as_seconds_since_1970(text: str, seconds: float | None) -> None:
    assert common_start.parse(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-5", "nan", "inf", "2025-13-01T00:00:00Z"])
def test_a_start_that_is_no_time_names_its_option_and_value(text: str) -> None:
    with pytest.raises(ValueError, match=f"--start-at '{text}'"):
        common_start.parse(text)


def test_a_start_that_has_passed_says_by_how_much() -> None:
    with pytest.raises(ValueError, match=r"passed 2\.5 s before this process was ready"):
        common_start.delay(100.0, now=102.5)


def test_a_start_in_milliseconds_is_refused_as_too_far_away() -> None:
    with pytest.raises(ValueError, match="hours away"):
        common_start.delay(1763726400_000.0, now=1763726400.0)


def test_a_program_that_is_asked_to_end_does_not_wait_for_the_start() -> None:
    stop = Stop()
    stop.ask()
    with pytest.raises(StoppedError):
        common_start.wait(None, stop)
