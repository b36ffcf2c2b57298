"""The real cluster of the tests: a real apiserver, scheduler, kubelet and containerd; only the GPUs are simulated."""

import os
import shutil
from collections.abc import Generator, Iterator

import pytest

from localcluster.cluster import cluster
from localcluster.paths import REPOSITORY
from localcluster.stack import Stack, embedded, install
from tests.cluster import parallel
from tests.cluster.harness import Harness
from tests.native import build

CLUSTER = parallel.cluster_name(os.environ)
LOGS = REPOSITORY / "build" / "cluster-tests"
LIBRARIES = "/run/gpushare-simulation/usr/lib64"
FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave the cluster up; the next run uses it again")
    parser.addoption(
        "--record-durations", action="store_true", help="the order of the next runs is by this one's times"
    )
    parser.addoption("--kueue", action="store_true", help="build Kueue and test gpushare beneath it")
    parser.addoption("--jupyterhub", metavar="DIR", help="a Python environment with jupyterhub-kubespawner: run it")
    parser.addoption("--hpa", action="store_true", help="build Prometheus and its adapter, and scale clients by them")
    parser.addoption("--autoscaler", metavar="DIR", help="cluster-autoscaler's source: build it, and test with it")
    parser.addoption(
        "--dcgm-exporter", metavar="DIR", help="dcgm-exporter's source: build its mapping of pods, and test it"
    )
    parser.addoption(
        "--go-dcgm", metavar="DIR", help="go-dcgm's source, in place of the module that dcgm-exporter names"
    )
    parser.addoption("--opentelemetry", action="store_true", help="build an OpenTelemetry Collector and scrape with it")
    parser.addoption("--cert-manager", action="store_true", help="build cert-manager and test the chart with it")
    parser.addoption("--upgrade", action="store_true", help="build the release before, and upgrade from it and back")
    parser.addoption(
        "--before", metavar="COMMIT", help="the release before (default: tests/cluster/upgrade/before.txt)"
    )
    parser.addoption("--pause", type=float, default=20.0, help="seconds for which parts stand still (default: 20)")
    parser.addoption("--cycles", type=int, default=25, help="steps of the random cycles (default: 25)")
    parser.addoption("--rounds", type=int, default=2, help="rounds of many clients at once (default: 2)")
    parser.addoption("--seed", type=int, help="of the random cycles (default: a new one, which is printed)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: proves a rare accident in more than a minute, runs by `make test-long`")
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(parallel.Recorder())


@pytest.fixture
def pause(request: pytest.FixtureRequest) -> float:
    """Seconds for which a part stands still."""
    seconds: float = request.config.getoption("--pause")
    return seconds


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often many clients come and go."""
    count: int = request.config.getoption("--rounds")
    return count


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means for these tests."""
    return parallel.workers_here()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> parallel.Scheduling:
    config.option.loadscopereorder = False  # which would put the files with the most tests first
    return parallel.Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = parallel.longest_first(items, parallel.recorded())


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The worker's cluster; gpushare may not be installed on it yet."""
    try:
        yield embedded(CLUSTER)
    finally:
        if not request.config.getoption("--keep-cluster"):
            cluster.down(CLUSTER)


@pytest.fixture(scope="session")
def harness(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Harness]:
    install(stack)
    harness = Harness(stack)
    yield harness
    if request.session.testsfailed:
        harness.dump(LOGS / CLUSTER)


@pytest.fixture(scope="module")
def driver(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The simulated driver has libraries, and the agent knows them."""
    place = harness.in_node(LIBRARIES)
    place.mkdir(parents=True)
    for library in build.driver(tmp_path_factory.mktemp("driver")).iterdir():
        shutil.copy(library, place / f"{library.name}.580")
        (place / library.name).symlink_to(f"{library.name}.580")
    harness.restart_pods("agent")
    harness.wait_component("agent")
    yield
    shutil.rmtree(harness.in_node("/run/gpushare-simulation/usr"))
    harness.restart_pods("agent")
    harness.wait_component("agent")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def _isolated_and_dumped_on_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test counts events from its beginning, and leaves what its cluster looked like when it failed."""
    name = "fresh" if "fresh" in request.fixturenames else "harness"
    harness: Harness = request.getfixturevalue(name)
    harness.begin()
    request.node.stash[FAILED] = False
    yield
    if request.node.stash[FAILED]:
        attempt = getattr(request.node, "execution_count", 1)  # of pytest-rerunfailures
        harness.dump(LOGS / f"{request.node.name}.{attempt}")
