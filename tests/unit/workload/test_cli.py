"""The command line: exit codes, and arguments that are refused with their name and value."""

import signal
from collections.abc import Iterator

import pytest

from gpushare_workload import cli


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


def test_the_list_has_the_question_of_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1) == ["limits", "are my limits real?"]
    assert all(line.endswith("?") for line in lines)
