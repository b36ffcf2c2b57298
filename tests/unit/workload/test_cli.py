"""The command line: exit codes, and arguments that are refused with their name and value."""

import argparse
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_workload import cli
from gpushare_workload.scenarios import SCENARIOS


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the signal handlers, which the command line replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["pool", "--tasks", "-1"], "--tasks -1: must be at least 0"),
        (["pool", "--workers", "0"], "--workers 0: must be at least 1"),
        (["pool", "--clients", "0"], "--clients 0: must be at least 1"),
        (["depart", "--elements", "0"], "--elements 0"),
        (["pipeline", "--gpu-workers", "0"], "--gpu-workers 0: must be at least 1"),
        (["pipeline", "--queue", "0"], "--queue 0: must be at least 1"),
    ],
)
def test_a_bad_argument_is_exit_code_2_and_names_its_option_and_value(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *argv]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("scenario", ["limits", "mix"])
def test_a_backend_that_is_not_installed_is_named_with_what_to_install(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed")
    assert cli.main(["run", scenario, "--backend", "cupy"]) == 2
    said = capsys.readouterr().err
    assert "--backend cupy: No module named 'cupy': install gpushare[cupy-cuda13x]" in said
    assert "Traceback" not in said


def test_limits_of_which_nothing_was_granted_are_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(tmp_path))
    assert cli.main(["run", "limits", "--backend", "numpy"]) == 2
    assert "nothing was granted, so nothing was checked; run this in a slot of a share" in capsys.readouterr().err


def test_a_scenario_says_at_once_that_no_gpu_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", str(tmp_path))
    assert cli.main(["run", "streams", "--backend", "numpy", "--chunks", "0", "--repeats", "1"]) == 0
    assert capsys.readouterr().err.startswith("No GPU: NumPy computes on this machine's CPU. Results are checked")


def test_the_list_has_the_question_of_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1) == ["limits", "are my limits real?"]
    assert all(line.endswith("?") for line in lines)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["run", "depart", "--role", "victim"], {"depart"}),
        (["bench", "--quick"], {"bench"}),
        (["run", "nonsense"], set(SCENARIOS)),
        (["run", "--help"], set(SCENARIOS)),
        (["--help"], {*SCENARIOS, *cli.COMMANDS}),
        ([], {*SCENARIOS, *cli.COMMANDS}),
    ],
)
def test_a_process_knows_what_it_is_asked_for_alone(words: list[str], kept: set[str]) -> None:
    assert known(cli.parser(words)) - {"list", "run"} == kept


def known(parser: argparse.ArgumentParser) -> set[str]:
    """The names of all commands below a parser."""
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001
        below |= action.choices if isinstance(action.choices, dict) else {}
    return set(below).union(*map(known, below.values()))


def test_the_scenario_that_is_run_is_the_only_one_that_is_imported() -> None:
    code = "import sys; from gpushare_workload import cli; cli.parser(['run', 'depart']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    others = {path for name, path in SCENARIOS.items() if name not in ("depart", "limits")}  # whose checks it uses
    assert not set(done.stdout.split()) & {*others, *cli.COMMANDS.values()}
