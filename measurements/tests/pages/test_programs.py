"""measurements/pages/programs.md says what the stored comparisons say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY

PAGE = REPOSITORY / "measurements" / "pages" / "programs.md"


def test_the_page_is_what_its_script_writes_from_the_results() -> None:
    command = [sys.executable, "-m", "measurements.gpu.programs.page"]
    written = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True).stdout
    assert PAGE.read_text() == written


def test_every_stored_comparison_is_on_the_page() -> None:
    results = REPOSITORY / "measurements" / "results"
    stored = {f"../results/{file.relative_to(results)}" for file in results.glob("*/compare-*.json")}
    assert stored
    assert {file for file in stored if f"({file})" not in PAGE.read_text()} == set()


COMMANDS = re.findall(r"^python3 (-m measurements\.gpu\.programs\.compare .+)", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_parts_that_can_be_repeated(tmp_path: Path, command: str) -> None:
    """A run without time for the parts measures nothing."""
    words = command.replace(" out/", f" {tmp_path}/").split()
    ran = subprocess.run(
        [sys.executable, *words, "--budget", "0"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert re.fullmatch(r"(\S+): left out, the budget is spent\nwithout a complete result: \1\n", ran.stdout), (
        ran.stderr
    )


def test_the_page_says_how_to_repeat_copies_and_a_pair() -> None:
    assert len(COMMANDS) == 2
