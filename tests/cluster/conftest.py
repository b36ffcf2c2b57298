"""The real cluster of the tests: a real apiserver, scheduler, kubelet and containerd; only the GPUs are simulated."""

from collections.abc import Iterator

import pytest

from localcluster import cluster
from localcluster.paths import REPOSITORY
from localcluster.stack import embedded, install
from tests.cluster.harness import Harness

CLUSTER = "test"
LOGS = REPOSITORY / "build" / "cluster-tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave the cluster up; the next run uses it again")


@pytest.fixture(scope="session")
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    keep = bool(request.config.getoption("--keep-cluster"))
    stack = embedded(CLUSTER)
    try:
        install(stack)
        harness = Harness(stack)
        yield harness
        if request.session.testsfailed:
            harness.dump(LOGS)
    finally:
        if not keep:
            cluster.down(CLUSTER)


@pytest.fixture(autouse=True)
def _dump_on_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the test's own cluster looked like right after a failure, before the next test changes it."""
    name = "fresh" if "fresh" in request.fixturenames else "harness"
    harness: Harness = request.getfixturevalue(name)
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        harness.dump(LOGS / request.node.name)
