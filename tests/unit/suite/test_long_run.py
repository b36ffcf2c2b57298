"""The tests that `make test` leaves out have run not long before the newest commit."""

import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.long_run import MOST_AGE, LongRun, git, is_overdue, read, write

COMMITTED = datetime.fromisoformat("2026-11-28T12:00:00+01:00")
RUN = LongRun("2026-11-28T14:05:00+00:00", "0" * 40, COMMITTED.isoformat(), 1800, 70)


def newest_commit() -> datetime:
    try:
        return datetime.fromisoformat(git("log", "-1", "--format=%cI"))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no clone with git: nothing says how new the tree is")


def test_the_long_tests_have_run_within_60_days_of_the_newest_commit() -> None:
    run = read()
    assert not is_overdue(run, newest_commit()), f"last run {run.date} of {run.commit[:8]}: run make test-long"
    assert run.passed > 0


@pytest.mark.parametrize(
    ("later", "overdue"),
    [(timedelta(0), False), (MOST_AGE, False), (MOST_AGE + timedelta(seconds=1), True), (-MOST_AGE, False)],
)
def test_a_record_is_overdue_by_the_dates_of_two_commits(later: timedelta, overdue: bool) -> None:
    assert is_overdue(RUN, COMMITTED + later) is overdue


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(RUN, tmp_path / "long-run.json")
    assert read(tmp_path / "long-run.json") == RUN


@pytest.mark.parametrize("text", ["", "{}", '{"commit": "0"}'])
def test_a_file_that_is_no_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "long-run.json").write_text(text)
    with pytest.raises((ValueError, TypeError)):
        read(tmp_path / "long-run.json")
