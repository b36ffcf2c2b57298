"""docs/sharing-a-gpu.md says what the stored benchmarks say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localcluster.paths import REPOSITORY
from tests.gpu.scenario_table import TABLE, Figure, parts, scenarios
from tests.marked import filled

PAGE = REPOSITORY / "docs" / "sharing-a-gpu.md"
SCRIPT = REPOSITORY / "tests" / "gpu" / "bench_page.py"
RESULTS = REPOSITORY / "docs" / "results"
PLACE = re.compile(r"(<!-- (\w+): written by tests/gpu/bench_page.py -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def test_the_tables_are_what_the_script_writes_from_the_results(tmp_path: Path) -> None:
    empty = tmp_path / "page.md"
    empty.write_text(PLACE.sub(r"\1\3", PAGE.read_text()))
    assert empty.read_text() != PAGE.read_text()
    subprocess.run([sys.executable, str(SCRIPT), str(empty)], timeout=120, check=True)
    assert empty.read_text() == PAGE.read_text()


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table gains"):
        filled("nothing", {"gains": "|"})


LINES: list[dict[str, Any]] = [
    {"event": "measured", "mode": "pool", "rate": 1000.4, "rate_least": 900.0, "rate_largest": 1100.0},
    {"event": "measured", "mode": "batch", "rate": 2.0, "latency": {"p99_ms": 0.25}},
    {"event": "measured", "mode": "batch", "rate": 3.0, "workers": {"finish": 4}},
]


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("part", "rate", {"mode": "pool"}, ",.0f"), "1,000 (900–1,100)"),
        (Figure("part", "rate", {"workers.finish": 4}), "3.00"),
        (Figure("part", "latency.p99_ms", {"latency.p99_ms": 0.25}, ".1f"), "0.2"),
    ],
    ids=["spread", "by a field of a field", "of a field"],
)
def test_a_figure_is_that_of_its_line(figure: Figure, text: str) -> None:
    assert figure.text({"part": LINES}) == text


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_a_figure_of_two_lines_or_of_none_is_an_error(mode: str) -> None:
    with pytest.raises(ValueError, match="values to unpack"):
        Figure("part", "rate", {"mode": mode}).text({"part": LINES})


def test_of_a_part_that_was_measured_twice_the_last_counts(tmp_path: Path) -> None:
    for name, date, rate in (("workload.json", "2026-11-02", 2), ("workload-again.json", "2026-11-01", 1)):
        stored = {"graph": {"events": [{"rate": rate}]}, "as_expected": {"graph": True}, "environment": {"date": date}}
        (tmp_path / name).write_text(json.dumps(stored))
    assert parts(tmp_path) == {"graph": [{"rate": 2}]}


def test_each_scenario_was_measured_on_each_product() -> None:
    lines = list(scenarios(RESULTS))
    assert len(lines) == 2 + sum(map(len, TABLE.values()))
    with pytest.raises(KeyError):
        list(scenarios(RESULTS / "scale"))
