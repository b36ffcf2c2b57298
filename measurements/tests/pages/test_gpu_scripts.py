"""The pages name every script and suite for a real GPU."""

import re

from localcluster.paths import REPOSITORY
from measurements.gpu.stack.suites import ANY, SUITES


def test_the_page_of_tests_names_each_measurement_on_a_gpu() -> None:
    rows = re.findall(
        r"^\| `python3 -m (measurements\.gpu\.\S+)`(.*)$", (REPOSITORY / "docs" / "testing.md").read_text(), re.M
    )
    named = {
        room.removesuffix("…") + script
        for room, text in rows
        for script in (re.findall(r"`(\w+)`", text) if room.endswith("…") else [""])
    }
    found = [file for file in (REPOSITORY / "measurements" / "gpu").glob("*/*.py") if file.parent.name != "stack"]
    scripts = {
        f"measurements.gpu.{it.parent.name}.{it.stem}" for it in found if '__name__ == "__main__"' in it.read_text()
    }
    # They write pages from what was measured:
    writers = {"measurements.gpu.workload.bench_page", "measurements.gpu.programs.page"}
    assert named == scripts - writers


def test_the_page_of_the_stack_says_of_each_suite_how_many_gpus_and_how_long() -> None:
    page = (REPOSITORY / "measurements" / "pages" / "h200.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (any number|\d+) \| (\d+) s \|", page, re.MULTILINE)
    assert rows == [
        (name, "any number" if gpus == ANY else str(gpus), str(limit)) for name, (_, limit, gpus) in SUITES.items()
    ]
