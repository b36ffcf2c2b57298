"""The README of the measurements names every script and suite for a real GPU, and each suite can be found."""

import os
import re
import subprocess
import sys

import pytest

from localcluster.paths import REPOSITORY
from measurements.gpu.stack.suites import ANY, SUITES, measure_of

README = (REPOSITORY / "measurements" / "README.md").read_text()


def test_the_readme_names_each_measurement_on_a_gpu() -> None:
    named = set(re.findall(r"^\|.*`python3 -m (measurements\.gpu\.[\w.]+)` \|", README, re.MULTILINE))
    """`stack` has suites, and `latency` programs that `mps.classes` starts."""
    folder = REPOSITORY / "measurements" / "gpu"
    files = [file.relative_to(REPOSITORY) for file in folder.glob("*/**/*.py")]
    scripts = {
        ".".join(file.with_suffix("").parts)
        for file in files
        if not {"stack", "latency"} & {*file.parts} and '__name__ == "__main__"' in (REPOSITORY / file).read_text()
    }
    # They write pages from what was measured:
    writers = {f"measurements.gpu.{name}" for name in ("workload.bench_page", "programs.page", "programs.pays")}
    assert named == scripts - writers


def test_the_readme_says_of_each_suite_how_many_gpus_and_how_long() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (any number|\d+) \| (\d+) s \|", README, re.MULTILINE)
    assert rows == [
        (name, "any number" if gpus == ANY else str(gpus), str(limit)) for name, (_, limit, gpus) in SUITES.items()
    ]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_found_by_its_name(name: str) -> None:
    assert callable(measure_of(name))


def test_unpacking_needs_the_standard_library_alone() -> None:
    folders = os.pathsep.join(str(REPOSITORY / folder) for folder in ("", "operator", "workload"))
    command = [sys.executable, "-S", str(REPOSITORY / "measurements" / "gpu" / "run"), "unpack", "--help"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, timeout=60, check=True
    )
    assert "unpack" in done.stdout
