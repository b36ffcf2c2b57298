"""The tables of kernels.md say what the stored benchmarks say."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.results.histogram import Histogram
from localcluster.paths import REPOSITORY
from measurements.gpu.mps import capped_pair
from measurements.gpu.workload.bench_tables import tables
from measurements.gpu.workload.scenario_table import TABLES, Figure, parts, scenarios
from tests.page_tables import filled

PAGES = [REPOSITORY / "measurements" / "pages" / "kernels.md"]
RESULTS = REPOSITORY / "measurements" / "results"
MARK = re.compile(r"<!-- (\w+): written by measurements/gpu/workload/bench_page.py -->")


def test_the_tables_are_what_the_script_writes_from_the_results(tmp_path: Path) -> None:
    for page in PAGES:
        emptied = filled(page.read_text(), dict.fromkeys(MARK.findall(page.read_text()), "nothing"))
        assert emptied != page.read_text()
        (tmp_path / page.name).write_text(emptied)
    command = [sys.executable, "-m", "measurements.gpu.workload.bench_page", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, timeout=120, check=True)
    for page in PAGES:
        assert (tmp_path / page.name).read_text() == page.read_text()


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the stored benchmarks, scenarios and capped pairs."""
    for product in ("h100", "h200"):
        shutil.copytree(RESULTS / product / "bench", tmp_path / product / "bench")
        for file in (RESULTS / product).glob("workload*.json"):
            shutil.copy(file, tmp_path / product)
    shutil.copy(RESULTS / "h100/capped-pair.json", tmp_path / "h100")
    return tmp_path


def figures(table: str, *line: str) -> list[list[float]]:
    """The figures of the line that begins with `line`, each with its extremes."""
    [cells] = [cells for row in table.splitlines() if (cells := row.strip("| ").split(" | "))[: len(line)] == [*line]]
    values = [
        [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+", cell)] for cell in cells[len(line) :]
    ]
    return [row if len(row) == 3 else row * 3 for row in values]


def runs(files: str, clients: int, mode: str, **load: Any) -> list[dict[str, Any]]:
    """The stored runs of one case on the H100."""
    wanted = {"clients": clients, "mode": mode, "kind": "compute", "grid": "small", "depth": 1, "graph": False} | load
    stored = [json.loads(file.read_text()) for file in sorted((RESULTS / "h100/bench").glob(files))]
    return [run for document in stored for run in document["runs"] if wanted.items() <= run.items()]


def rates(files: str, clients: int, mode: str, **load: Any) -> list[float]:
    return [run["kernels_per_second"] for run in runs(files, clients, mode, **load)]


def spread(values: list[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return tables(RESULTS)


def test_a_rate_has_the_least_and_the_largest_of_its_repeats(written: dict[str, str]) -> None:
    depth = figures(written["depth_h100"], "half the GPU", "one alone")
    assert depth[0] == pytest.approx(spread(rates("depth-*.json", 1, "time-slicing", grid="half")), abs=0.51)
    capped = figures(written["caps"], "2 at 50 %", "8 blocks, depth 1", "H100")
    assert capped[0] == pytest.approx(spread(rates("caps.json", 2, "mps")), abs=0.51)
    memory = runs("memory.json", 1, "time-slicing", kind="memory")
    moved = [run["kernels_per_second"] * run["launch"]["bytes_moved"] / 1e12 for run in memory]
    assert figures(written["bandwidth"], "8 blocks, depth 1", "H100")[0] == pytest.approx(spread(moved), abs=0.0051)


def test_a_latency_is_of_all_rounds_and_has_the_extremes_of_one_repeat(written: dict[str, str]) -> None:
    each = [
        Histogram.merged(Histogram.from_json(result["latency"]) for result in run["results"])
        for run in runs("caps.json", 8, "mps", depth=16)
    ]
    p99 = [histogram.percentile(99) / 1000 for histogram in (Histogram.merged(each), *each)]
    shown = figures(written["cap_latencies"], "8 at 12.5 %: 8 blocks, depth 16", "H100")[2]
    assert shown == pytest.approx([p99[0], min(p99[1:]), max(p99[1:])], abs=0.51)
    assert shown[0] != pytest.approx(statistics.median(p99[1:]), abs=0.51), "this case tells the two apart"


def test_clients_against_one_alone(written: dict[str, str]) -> None:
    """Both are compared within a repeat where both ran in it, else each run against each."""
    two, _, eight, _ = figures(written["clients_alone"], "8 blocks, depth 1", "H100")
    alone = rates("depth-*.json", 1, "time-slicing")
    within = [all_ / single for all_, single in zip(rates("depth-*.json", 8, "mps"), alone, strict=True)]
    assert eight == pytest.approx(spread(within), abs=0.0051)
    assert two == pytest.approx(
        spread([all_ / single for all_ in rates("scale.json", 2, "mps") for single in alone]), abs=0.0051
    )


@pytest.mark.parametrize("name", ["memory.json", "caps.json", "scale.json", "overlap-four-mps.jsonl", "mix-mps.jsonl"])
def test_a_table_without_its_runs_is_an_error(results: Path, name: str) -> None:
    (results / "h200/bench" / name).unlink()
    with pytest.raises(KeyError):
        tables(results)


def test_a_gain_without_time_slices_is_an_error(results: Path) -> None:
    file = results / "h100/bench/memory.json"
    stored = json.loads(file.read_text())
    stored["runs"] = [run for run in stored["runs"] if (run["mode"], run["clients"]) != ("mps", 1)]
    file.write_text(json.dumps(stored))
    tables(results)
    for run in stored["runs"]:
        run["repeat"] += 10 * (run["mode"] == "mps")
    file.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="a gain without its baseline"):
        tables(results)


def test_figures_of_a_simulated_gpu_are_refused(results: Path) -> None:
    for file in (results / "h200/bench").glob("depth-*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"simulated": True}))
    (results / "h200/bench/scale.json").unlink()
    with pytest.raises(ValueError, match="figures of a simulated GPU are no results"):
        tables(results)


def test_slow_kernels_of_a_capped_pair_are_counted_over_all_runs(results: Path) -> None:
    file = results / "h100/capped-pair.json"
    stored = json.loads(file.read_text())
    case = "66 blocks of 1024 threads that fill the SM, depth 1"
    for run, slow, own in zip(stored["runs"]["50"], (10, 50, 0), (10, 20, 0), strict=True):
        names = {"counted": 100, "with_slow_blocks": slow, "with_slow_blocks_and_two_on_one_sm": own}
        run[case] |= {f"{name}_together": value for name, value in names.items()}
    file.write_text(json.dumps(stored))
    [row] = [
        row for row in tables(results)["capped_pair_1"].splitlines() if "1024 threads that fill the SM | 66" in row
    ]
    assert row.strip("| ").split(" | ")[4] == "20 % (50 %)"


def test_few_slow_kernels_have_no_part_and_several_blocks_have_no_figure(results: Path) -> None:
    written = tables(results)
    few, many = (
        [row.strip("| ").split(" | ") for row in written[f"capped_pair_{depth}"].splitlines()[2:]] for depth in (1, 16)
    )
    assert {row[4] for row in few if row[1] == "60"} == {"0 %"}
    assert {row[4] for row in (*few, *many) if row[1] == "132"} == {"–"}


def test_rates_and_overlap_of_a_capped_pair_are_of_the_time_of_both() -> None:
    first = {"kernels": [[0, 1000, 2000], [800, 1800, 2800]]}
    other = {"kernels": [[1000, 1500, 3000], [1400, 1900, 4000]]}
    assert capped_pair.window([first, other]) == (1000, 2800)
    assert capped_pair.rates([first, other]) == [pytest.approx(2 / 1800e-9), pytest.approx(2 / 1800e-9)]
    assert capped_pair.overlap([first, other]) == pytest.approx((800 + 800 + 400 + 400) / 1800)


LINES: list[dict[str, Any]] = [
    {"event": "measured", "mode": "pool", "rate": 1000.4, "rate_least": 900.0, "rate_largest": 1100.0},
    {"event": "measured", "mode": "batch", "rate": 2.0, "latency": {"p99_ms": 0.25}},
    {"event": "measured", "mode": "batch", "rate": 3.0, "workers": {"finish": 4}},
    {"event": "measured", "mode": "rehearsal", "rate": 3.0, "timed": False},
]


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("part", "rate", {"mode": "pool"}, ",.0f"), "1,000 (900–1,100)"),
        (Figure("part", "rate", {"workers.finish": 4}), "3.00"),
        (Figure("part", "latency.p99_ms", {"latency.p99_ms": 0.25}, ".1f"), "0.2"),
        (Figure("part", "rate", {"mode": "batch"}, ",.0f", of_runs=True), "2 (2–3)"),
    ],
    ids=["spread", "by a field of a field", "of a field", "of several runs"],
)
def test_a_figure_is_that_of_its_line(figure: Figure, text: str) -> None:
    assert figure.text({"part": LINES}) == text


@pytest.mark.parametrize(
    ("figure", "error", "words"),
    [
        (Figure("part", "rate", {"mode": "batch"}), ValueError, "too many values to unpack"),
        (Figure("part", "rate", {"mode": "stream"}), ValueError, "not enough values to unpack"),
        (Figure("part", "rate", {"mode": "rehearsal"}), ValueError, "figures of a simulated GPU are no results"),
        (Figure("part", "speed", {"mode": "pool"}), KeyError, "part has no speed"),
        (Figure("part", "mode.speed", {"mode": "pool"}), KeyError, "part has no mode.speed"),
        (Figure("other", "rate", {"mode": "pool"}), KeyError, "other"),
    ],
    ids=["two lines", "no line", "simulated", "no field", "no field of a field", "no part"],
)
def test_a_figure_that_was_not_measured_is_an_error(figure: Figure, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        figure.text({"part": LINES})


def stored(date: str, rate: int, as_expected: bool = True) -> str:
    part = {"events": [{"rate": rate}], "as_expected": as_expected}
    return json.dumps({"graph": part, "as_expected": {"graph": as_expected}, "environment": {"date": date}})


def test_of_a_part_that_was_measured_twice_the_last_as_expected_counts(tmp_path: Path) -> None:
    (tmp_path / "workload.json").write_text(stored("2026-11-02", 2))
    (tmp_path / "workload-before.json").write_text(stored("2026-11-01", 1))
    (tmp_path / "workload-failed.json").write_text(stored("2026-11-03", 3, as_expected=False))
    assert parts(tmp_path) == {"graph": [{"rate": 2}]}


def test_each_scenario_was_measured_on_each_product() -> None:
    by_scenario = scenarios(RESULTS)
    for name, table in TABLES.items():
        assert len(by_scenario[name]) == 2 + sum(map(len, table.values()))
    with pytest.raises(KeyError):
        scenarios(RESULTS / "scale")
