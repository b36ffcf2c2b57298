"""The progress of a scenario in a log: what is done and how long the rest takes, and nothing for what is short."""

from io import StringIO

from gpushare_workload.scenarios.progress import progress


def said(*moments: float) -> list[str]:
    """What stands in the log of four equal steps that end at these seconds."""
    out, clock = StringIO(), iter([0.0, *moments])
    with progress(4, "pool", out, lambda: next(clock)) as advance:
        for _ in moments:
            advance(1)
    return out.getvalue().splitlines()


def test_a_log_says_how_much_is_done_and_how_long_the_rest_takes() -> None:
    assert said(12.0, 15.0, 30.0, 40.0) == ["pool: 25% done, about 36 s left", "pool: 75% done, about 10 s left"]


def test_what_is_over_within_seconds_says_nothing() -> None:
    assert said(1.0, 2.0, 3.0, 4.0) == []
