"""The number of clusters on a machine, their names, and the files that share one."""

import re

import pytest

from localcluster.paths import REPOSITORY, state_dir
from tests.cluster import parallel

IF_ASKED_FOR = re.compile(r'"--(dcgm-exporter|opentelemetry|upgrade|autoscaler|cert-manager|hpa|kueue)"')
"""Files that run alone, by an option of their own."""


@pytest.mark.parametrize(
    ("cores", "available_mib", "workers"),
    [(2, 16_000, 4), (1, 16_000, 2), (3, 16_000, 6), (64, 200_000, 8), (8, 8_000, 4), (2, 4_000, 1), (2, 500, 1)],
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
