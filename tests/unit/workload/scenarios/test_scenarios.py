"""The scenarios by name: each states its question."""

import argparse
import re

import pytest

from gpushare_workload import cli
from gpushare_workload.scenarios import SCENARIOS, scenario

EXAMPLE = re.compile(r"such as .*|--slo \S+")
"""What a user may write."""
FIGURE = re.compile(r"\bH[12]00\b|\d ?%|\b\d[\d.,]* ?(?:ms|µs|seconds|MiB|GiB|SMs)\b|\d\.\d+ times")


def test_every_scenario_states_its_question() -> None:
    for name in SCENARIOS:
        first = (scenario(name).__doc__ or "").splitlines()[0]
        assert first.startswith(f"{name}: "), first
        assert first.endswith("?"), first
        assert name == scenario(name).NAME


@pytest.mark.parametrize("name", [*SCENARIOS, *cli.COMMANDS])
def test_a_help_text_has_no_measured_figure(name: str) -> None:
    """A figure stands on one page, with its machine and its runs; what is printed with a program grows old."""
    module = scenario(name) if name in SCENARIOS else cli.command(name)
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    shown = "\n".join([module.__doc__ or "", *(str(action.help) for action in parser._actions)])  # noqa: SLF001
    assert FIGURE.findall(EXAMPLE.sub("", shown)) == []
