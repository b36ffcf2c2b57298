"""docs/compare.md and docs/enabling.md: their commands are ones that the programs take, and no flag is left out."""

import argparse
import re
import shlex

import pytest

from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare.kubectl.rules.trial.decision import LEAST_OF_MEAN, LONGEST_P99, WORTH
from gpushare.kubectl.rules.trial.options import figures_of, plan_of, times_of
from gpushare.kubectl.rules.trial.verdict import Answer
from gpushare.kubectl.trial import command as trial
from gpushare_workload import cli
from gpushare_workload.compare.options import add_arguments, request_of
from localcluster.paths import REPOSITORY

PAGES = {name: (REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("compare", "enabling")}
COMMANDS = [
    shlex.split(line.partition(" >")[0], comments=True)
    for page in PAGES.values()
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
COMPARE = [words for words in COMMANDS if words[:2] == ["gpushare-workload", "compare"]]
TRIAL = [words for words in COMMANDS if words[:3] == ["kubectl", "gpushare", "trial"]]


def test_both_pages_have_commands() -> None:
    assert len(COMPARE) >= 2
    assert len(TRIAL) >= 2
    assert sum("--beside" in words for words in TRIAL) >= 2, "a pair on each page"


@pytest.mark.parametrize("words", COMPARE, ids=" ".join)
def test_a_comparison_of_the_pages_is_one_that_the_program_takes(words: list[str]) -> None:
    arguments = cli.parser().parse_args(words[1:])
    if arguments.read is not None:
        assert not arguments.program, "it runs nothing"
        return
    request = request_of(arguments)
    for program in request.programs:
        path = next(word for word in program if word.endswith(".py"))
        assert "/" not in path or (REPOSITORY / path).is_file()


@pytest.mark.parametrize("words", TRIAL, ids=" ".join)
def test_a_trial_of_the_pages_is_one_that_the_plugin_takes(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    trial.add_arguments(parser)
    arguments = parser.parse_args(words[3:])
    assert arguments.share
    assert plan_of(arguments, [TrialMode.SLOTS], 1 + len(arguments.beside))
    assert times_of(arguments, figures_of(arguments))


def test_the_page_on_enabling_has_the_rule_of_the_verdicts() -> None:
    page = " ".join(PAGES["enabling"].split())
    for bound in (
        f"at least {WORTH:g} times the work of one alone",
        f"at most {LONGEST_P99:g} times that alone",
        f"at least {LEAST_OF_MEAN * 100:.0f} % of the mean speed",
        f"*× alone* is at least {WORTH:g} against the baseline",
    ):
        assert bound in page, bound
    for answer in Answer:
        assert answer is Answer.UNTIMED or f"| *{answer.value}* |" in PAGES["compare"], answer


def test_every_flag_of_compare_is_on_its_page() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    for flag in re.findall(r"--[a-z][\w-]+", parser.format_usage()):
        assert f"`{flag}" in PAGES["compare"], flag
