"""docs/programs.md says what the stored comparisons say."""

import subprocess
import sys

from localcluster.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "programs.md"


def test_the_page_of_real_programs_is_what_its_script_writes_from_the_results() -> None:
    command = [sys.executable, "-m", "tests.gpu.programs.page"]
    written = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True).stdout
    assert PAGE.read_text() == written


def test_every_stored_comparison_is_on_the_page() -> None:
    stored = {str(file.relative_to(PAGE.parent)) for file in PAGE.parent.glob("results/*/compare-*.json")}
    assert stored
    assert {file for file in stored if f"({file})" not in PAGE.read_text()} == set()
