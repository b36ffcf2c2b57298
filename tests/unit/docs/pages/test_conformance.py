"""The page of others' suites: every test and every result that it names is there, and every case has an outcome."""

import re

import pytest

from localcluster.paths import REPOSITORY
from tests.unit.docs.pages.test_threats import defined_in

PAGE = (REPOSITORY / "measurements" / "pages" / "conformance.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BENCHMARK = "GPU-Virt-Bench"
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)))
OUTCOMES = {"meets", "differs", "in part", "no", "–"}
SHOWN = {"meets", "differs"}
"""Outcomes that a test has to show; one that is in part may have a page or a sentence in its place."""


def rows(section: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:]]


CASES = [pytest.param(row, id=row[0]) for section in SECTIONS if section != BENCHMARK for row in rows(section)]


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_page_names_is_there(file: str, test: str) -> None:
    assert test.startswith("test_")
    assert test in defined_in(file)


@pytest.mark.parametrize("row", CASES)
def test_every_case_has_an_outcome_and_what_shows_it(row: list[str]) -> None:
    case, asks, outcome, shown = row
    assert case
    assert asks
    assert outcome in OUTCOMES
    assert "`tests/" in shown if outcome in SHOWN else shown


def test_every_suite_is_named_with_the_commit_or_release_that_was_read() -> None:
    for name, text in SECTIONS.items():
        introduction = text.partition("\n| ")[0]
        assert re.search(r"`[0-9a-f]{40}`|v1\.37\.0|same (repository and commit|release)", introduction, re.I), name
    assert len(SECTIONS) == 8


def test_every_metric_of_the_benchmark_has_figures_or_says_why_not() -> None:
    metrics = rows(BENCHMARK)
    for metric, _, figures in metrics:
        assert re.search(r"\[[\w.-]+\.json\]\(../results/|^–$|^no$", figures), metric
    assert sum(len(list(numbers(metric))) for metric, _, _ in metrics) == 56


def numbers(metric: str) -> list[str]:
    """Such as BW-001 to BW-004, written out."""
    listed: list[str] = []
    for group in metric.partition(":")[0].split(", "):
        first, _, last = group.partition(" to ")
        name, number = first.split("-")
        listed += [f"{name}-{n:03}" for n in range(int(number), int((last or first).split("-")[1]) + 1)]
    return listed
