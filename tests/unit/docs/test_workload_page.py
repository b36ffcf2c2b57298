"""docs/workload.md has every scenario, its question and its flags with their defaults."""

import argparse
import re

import pytest

from gpushare_workload.scenarios import SCENARIOS
from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "workload.md").read_text()
SHARED = {"--help", "--grid", "--kind", "--iterations", "--elements", "--backend", "--seed"}
"""In the tables that several scenarios share; a scenario may list its own all the same."""


def section(name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section {name}"
    return found[1]


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_scenario_is_in_the_table_with_its_question(name: str) -> None:
    question = (SCENARIOS[name].__doc__ or "").splitlines()[0].split(": ", 1)[1]
    assert f"| [`{name}`](#{name}) | {question} |" in PAGE


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_flag_has_a_line_with_its_default_and_no_other_has(name: str) -> None:
    parser = argparse.ArgumentParser()
    SCENARIOS[name].add_arguments(parser)
    told = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", section(name), re.MULTILINE))
    flags = {action.option_strings[-1]: action.default for action in parser._actions}
    assert set(told) <= set(flags)
    assert set(flags) - SHARED <= set(told)
    for flag, text in told.items():
        default = flags[flag]
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(text) == default, flag
