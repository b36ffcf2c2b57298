"""Durations are read as Kubernetes writes them, and what could be misread is refused."""

import pytest

from gpushare.api.quantity import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("1h1m1s", 3661)]
)
def test_whole_seconds_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "1.5h", "-5m", "5ms", "30s5m", "5M", "1h\n", "1d"])
def test_what_could_be_misread_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_duration(text)
