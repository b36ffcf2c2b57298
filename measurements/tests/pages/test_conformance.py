"""The page of others' suites: every test and every result that it names is there, and every case has an outcome."""

import re

import pytest

from measurements.conformance.page import CASES, OUTCOMES, PAGE, Case, page, suites
from tests.unit.docs.pages.test_threats import defined_in

SUITES = suites()
TEXT = PAGE.read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", TEXT + CASES.read_text())))
SHOWN = {"meets", "differs"}
"""Outcomes that a test has to show; one that is in part may have a page or a sentence in its place."""
_, BENCHMARK = TEXT.split("\n## GPU-Virt-Bench\n")


def test_the_page_is_what_its_script_writes_from_the_cases() -> None:
    assert page(SUITES) == TEXT, "run python -m measurements.conformance.page"


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_page_names_is_there(file: str, test: str) -> None:
    assert test.startswith("test_")
    assert test in defined_in(file)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{suite.name}: {case.case}") for suite in SUITES for case in suite.cases]
)
def test_every_case_has_an_outcome_and_what_shows_it(case: Case) -> None:
    assert case.case
    assert case.asks
    assert case.outcome in OUTCOMES
    assert "`tests/" in case.shown if case.outcome in SHOWN else case.shown


def test_every_suite_is_named_with_the_commit_or_release_that_was_read() -> None:
    for suite in SUITES:
        assert re.search(r"`[0-9a-f]{40}`|v1\.37\.0|same (repository and commit|release)", suite.source), suite.name
    assert re.search(r"`[0-9a-f]{40}`", BENCHMARK)
    assert len(SUITES) == 7


def test_every_metric_of_the_benchmark_has_figures_or_says_why_not() -> None:
    lines = [
        line for line in BENCHMARK.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| metric"))
    ]
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    for metric, _, figures in rows:
        assert re.search(r"\[[\w.-]+\.json\]\(../results/|^–$|^no$", figures), metric
    assert sum(len(list(numbers(metric))) for metric, _, _ in rows) == 56


def numbers(metric: str) -> list[str]:
    """Numbers such as BW-001 to BW-004, written out."""
    listed: list[str] = []
    for group in metric.partition(":")[0].split(", "):
        first, _, last = group.partition(" to ")
        name, number = first.split("-")
        listed += [f"{name}-{n:03}" for n in range(int(number), int((last or first).split("-")[1]) + 1)]
    return listed
