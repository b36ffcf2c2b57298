"""The number of clusters on a machine, their names, and the files that share one."""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY, state_dir
from tests.cluster import parallel

IF_ASKED_FOR = re.compile(r'"--(dcgm-exporter|opentelemetry|upgrade|autoscaler|cert-manager|hpa|kueue)"')
"""Files that run alone, by an option of their own."""


@pytest.mark.parametrize(
    ("cores", "available_mib", "workers"),
    [(2, 16_000, 4), (1, 16_000, 2), (3, 16_000, 6), (64, 200_000, 6), (8, 8_000, 2), (2, 5_000, 1), (2, 500, 1)],
)
def test_cores_and_memory_limit_the_number_of_clusters(cores: int, available_mib: int, workers: int) -> None:
    assert parallel.workers(cores, available_mib) == workers


def test_memory_is_read_from_the_kernel() -> None:
    assert parallel.available_mib("MemTotal: 9 kB\nMemAvailable:   2097152 kB\n") == 2048


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "test"),
        ({"PYTEST_XDIST_WORKER": "gw3"}, "test-gw3"),
        ({"GPUSHARE_TEST_CLUSTER": "mine", "PYTEST_XDIST_WORKER": "gw0"}, "mine-gw0"),
    ],
)
def test_each_worker_has_a_cluster_of_its_own(environment: dict[str, str], name: str) -> None:
    assert parallel.cluster_name(environment) == name
    state_dir(name)  # raises if it were no legal one


def test_the_files_that_stay_together_exist() -> None:
    assert [file for file in parallel.TOGETHER if not (REPOSITORY / file).exists()] == []


def test_a_file_whose_tests_share_a_fixture_stays_together() -> None:
    """Else each worker that gets one of its tests makes the share, the namespace or the settings once more."""
    files = {
        str(path.relative_to(REPOSITORY)): path.read_text()
        for path in (REPOSITORY / "tests" / "cluster").rglob("test_*.py")
    }
    sharing = {file for file, text in files.items() if 'scope="module"' in text and not IF_ASKED_FOR.search(text)}
    assert sharing - parallel.TOGETHER == set()


@dataclass
class Item:
    nodeid: str


SHARING = "tests/cluster/shares/test_changes.py"


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        ({}, ["a::long", f"{SHARING}::x", "a::short", "b::new", f"{SHARING}::y"]),
        ({"a::long": 90, "a::short": 2}, ["a::long", f"{SHARING}::x", "b::new", f"{SHARING}::y", "a::short"]),
        (
            {"a::long": 9, "a::short": 2, SHARING: 90},
            [f"{SHARING}::x", f"{SHARING}::y", "b::new", "a::long", "a::short"],
        ),
    ],
)
def test_what_took_longest_is_first_and_a_file_that_shares_stays_whole(
    seconds: dict[str, float], order: list[str]
) -> None:
    names = ["a::long", f"{SHARING}::x", "a::short", "b::new", f"{SHARING}::y"]
    assert [item.nodeid for item in parallel.longest_first([Item(name) for name in names], seconds)] == order


@dataclass
class Report:
    nodeid: str
    when: str
    duration: float
    worker_id: str = "gw0"


@pytest.mark.parametrize(
    ("status", "written"), [(0, {SHARING: 63, "a::other": 7}), (1, {"a::other": 9}), (2, {"a::other": 9})]
)
def test_a_run_without_failures_records_what_is_no_start_of_a_cluster(
    tmp_path: Path, status: int, written: dict[str, int]
) -> None:
    path = tmp_path / "durations.json"
    path.write_text(json.dumps({"a::left-out": 4, "a::other": 9}))
    recorder = parallel.Recorder(path)
    for report in (
        Report(f"{SHARING}::x", "setup", 57.0),
        Report("a::other", "setup", 99.0, "gw1"),
        Report(f"{SHARING}::x", "call", 40.4),
        Report("a::other", "call", 7.0, "gw1"),
        Report(f"{SHARING}::y", "setup", 12.0),
        Report(f"{SHARING}::y", "call", 10.5),
    ):
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish(status)
    assert json.loads(path.read_text()) == {"a::left-out": 4} | written


def test_what_is_recorded_exists() -> None:
    gone = []
    for name in parallel.recorded():
        file, _, test = name.partition("::")
        path = REPOSITORY / file
        defined = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        if test and test.partition("[")[0] not in defined:
            gone.append(name)
    assert gone == [], "rename it in tests/cluster/durations.json too"


def test_cluster_tests_have_no_mark_that_pytest_refuses() -> None:
    """It would say so only when all of them are collected."""
    texts = [path.read_text() for path in (REPOSITORY / "tests" / "cluster").rglob("*.py")]
    marks = {mark for text in texts for mark in re.findall(r"pytest\.mark\.(\w+)", text)}
    assert marks <= {"long", "parametrize", "skipif", "usefixtures"}
