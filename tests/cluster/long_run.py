"""`make test-long`: the tests marked `long`, all of them, and the record of their last passing run.

A test is `long` that proves a rare accident and takes more than a minute, and so is what other projects' suites test
(tests/cluster/conformance). They run at the end of each piece of work; the record says of which commit. A unit test
holds the record's age against the newest commit.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY

TESTS = REPOSITORY / "tests" / "cluster"
RECORD = TESTS / "long-run.json"
MOST_AGE = timedelta(days=60)
"""The longest time between the commit that was tested last and the newest one: a checkout that stays as it is stays
green."""


@dataclass(frozen=True, slots=True)
class LongRun:
    date: str
    """When it ended, in UTC: 2026-11-28T14:05:00+00:00."""
    commit: str
    """The commit of the tree that was tested, 40 hexadecimal digits."""
    committed: str
    """When that commit was made, with its time zone."""
    seconds: int
    """The length of the whole run, clusters and images included."""
    passed: int
    """Tests."""


def read(path: Path = RECORD) -> LongRun:
    """Raises OSError, ValueError or TypeError where there is no record, or another one."""
    return LongRun(**json.loads(path.read_text()))


def write(run: LongRun, path: Path = RECORD) -> None:
    path.write_text(json.dumps(asdict(run), indent=2) + "\n")


def is_overdue(run: LongRun, newest: datetime) -> bool:
    """`newest`: when the newest commit was made."""
    return newest - datetime.fromisoformat(run.committed) > MOST_AGE


def git(*arguments: str) -> str:
    """Raises CalledProcessError where this is no clone, OSError without git."""
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def changed_files() -> list[str]:
    """What differs from the commit, other than the record."""
    lines = git("status", "--porcelain", "--untracked-files=no").splitlines()
    return [name for line in lines if (name := line.split(maxsplit=1)[1]) != str(RECORD.relative_to(REPOSITORY))]


class Outcomes:
    """A pytest plugin that counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1


def main(arguments: list[str]) -> int:
    """`arguments`: of pytest; those that leave tests out have no place here."""
    commit, committed, changed = git("rev-parse", "HEAD"), git("log", "-1", "--format=%cI"), changed_files()
    if changed:
        print(f"{', '.join(changed)} differ from the commit: this run is not recorded", file=sys.stderr)
    began, outcomes = time.monotonic(), Outcomes()
    code = int(pytest.main([str(TESTS), "-m", "long", *arguments], plugins=[outcomes]))
    if code == 0 and not changed:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        write(LongRun(date, commit, committed, round(time.monotonic() - began), outcomes.counts["passed"]))
        print(f"recorded in {RECORD.relative_to(REPOSITORY)}: commit it")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
