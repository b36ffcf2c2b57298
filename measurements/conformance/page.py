"""Writes the tables of measurements/pages/conformance.md from the cases beside this file.

python -m measurements.conformance.page
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from localcluster.paths import REPOSITORY
from tests.page_tables import filled, head_of, line_of

CASES = REPOSITORY / "measurements" / "conformance" / "cases.json"
PAGE = REPOSITORY / "measurements" / "pages" / "conformance.md"
OUTCOMES = {"meets": "meets", "differs": "differs", "in part": "in part", "no": "no", "–": "else"}
"""Outcomes, with the heads of their columns."""
OTHERWISE = ("differs", "in part", "no")


@dataclass(frozen=True)
class Case:
    """What it `asks`, one of OUTCOMES, and the tests that show it, or why there are none."""

    case: str
    asks: str
    outcome: str
    shown: str


@dataclass(frozen=True)
class Suite:
    """`source`: where it was read, with its commit or release, in Markdown."""

    name: str
    source: str
    cases: Sequence[Case]


def suites() -> list[Suite]:
    stored: dict[str, Any] = json.loads(CASES.read_text())
    return [
        Suite(suite["suite"], suite["source"], [Case(**case) for case in suite["cases"]]) for suite in stored["suites"]
    ]


def page(read: Sequence[Suite]) -> str:
    """measurements/pages/conformance.md with the tables of these suites."""
    tables = {"counts": "\n".join(_counts(read)), "otherwise": "\n\n".join(map(_otherwise, filter(_differs, read)))}
    return filled(PAGE.read_text(), tables)


def _counts(read: Sequence[Suite]) -> Iterator[str]:
    yield from head_of("suite", *OUTCOMES.values())
    for suite in read:
        counted = Counter(case.outcome for case in suite.cases)
        yield line_of(f"{suite.name} ({suite.source})", *(str(counted[outcome]) for outcome in OUTCOMES))


def _differs(suite: Suite) -> bool:
    return any(case.outcome in OTHERWISE for case in suite.cases)


def _otherwise(suite: Suite) -> str:
    cases = [case for case in suite.cases if case.outcome in OTHERWISE]
    lines = [line_of(case.case, case.asks, case.outcome, case.shown) for case in cases]
    return "\n".join([f"### {suite.name}", *head_of("case", "it asks", "outcome", "shown by, or why"), *lines])


if __name__ == "__main__":
    PAGE.write_text(page(suites()))
