"""docs/workload.md has every scenario with its question, docs/scenarios.md its flags; their commands can be run."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare_workload import cli
from gpushare_workload.scenarios import SCENARIOS, scenario
from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "workload.md").read_text()
REFERENCE = (REPOSITORY / "docs" / "scenarios.md").read_text()
SHARED = {"--help", "--grid", "--kind", "--iterations", "--elements", "--backend", "--seed"}
"""Options of the tables that several scenarios share; a scenario may list its own all the same."""


COMMANDS = [
    shlex.split(line.split(" | ")[0], comments=True)
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE + REFERENCE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("gpushare-workload ")
]


def section(name: str) -> str:
    body = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert body, f"no section {name}"
    return body[1]


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_scenario_is_in_the_table_with_its_question(name: str) -> None:
    question = (scenario(name).__doc__ or "").splitlines()[0].split(": ", 1)[1]
    assert f"| [`{name}`](scenarios.md#{name}) | {question} |" in PAGE


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_flag_has_a_line_with_its_default_and_no_other_has(name: str) -> None:
    parser = argparse.ArgumentParser()
    scenario(name).add_arguments(parser)
    documented = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", section(name), re.MULTILINE))
    flags = {action.option_strings[-1]: action.default for action in parser._actions}  # noqa: SLF001
    assert set(documented) <= set(flags)
    assert set(flags) - SHARED <= set(documented)
    for flag, text in documented.items():
        default = flags[flag]
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(text) == default, flag


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_of_the_page_is_one_that_the_program_takes(command: list[str]) -> None:
    assert cli.parser().parse_args(command[1:]).command == command[1]


def test_every_flag_of_the_benchmark_is_on_the_page() -> None:
    for flag in re.findall(r"--[a-z][\w-]+", _help_of("bench")):
        assert f"`{flag}" in PAGE, flag


def test_the_commands_for_a_simulated_gpu_check_a_limit() -> None:
    block = re.search(r"^## Without a GPU\n.*?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block
    with tempfile.TemporaryDirectory(prefix="page-") as folder:  # sockets have short paths
        programs = Path(folder)
        for name, module in (("gpushare", "gpushare.cli.main"), ("gpushare-workload", "gpushare_workload.cli")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            (programs / name).chmod(0o755)
        (programs / "python3").symlink_to(sys.executable)
        process = subprocess.Popen(
            ["/bin/bash", "-ec", block[1]],
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": folder},
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    (limits,) = [json.loads(line) for line in out.splitlines()]
    assert (limits["backend"], limits["observed"]["sms"]) == ("numpy on a simulated GPU", 32)
    assert (limits["checked"], limits["problems"]) == (["threads"], [])


def _help_of(name: str) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    cli.command(name).add_arguments(parser)
    return parser.format_usage()
