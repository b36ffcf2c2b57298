"""Installing in either order, upgrading with clients running, uninstalling: as an administrator does it."""

import time
from collections.abc import Iterator

import pytest

from localcluster import cluster
from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import NAMESPACE, RELEASE, embedded, install
from tests.cluster.harness import Harness, gpu_share, is_ready, wait_until

CLUSTER = "test-chart"


@pytest.fixture(scope="module")
def fresh() -> Iterator[Harness]:
    """A cluster of its own: these tests remove what the others stand on."""
    stack = embedded(CLUSTER)
    try:
        yield Harness(stack)
    finally:
        cluster.down(CLUSTER)


def test_definitions_applied_by_hand_before_the_chart_are_left_as_they_are(fresh: Harness) -> None:
    fresh.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    fresh.kubectl("wait", "--for=condition=Established", "crd/gpushares.gpushare.dev", "crd/gpunodes.gpushare.dev")
    fresh.kubectl.create(gpu_share("early", {"clients": {"perGpu": 4, "memory": {"default": "8Gi"}}}))
    install(fresh.stack)
    wait_until("the share made before is Ready", lambda: is_ready(fresh.kubectl.get("gpushare", "early")), 60)
    early = fresh.kubectl.get("gpushare", "early")
    assert early["status"]["summary"] == "2/2"


def test_an_upgrade_with_clients_running_restarts_none_of_them(fresh: Harness) -> None:
    with fresh.namespace() as tenant:
        names = tenant.neighbours("early", 2)
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.pods()}
        daemons = mps_uids(fresh)
        checks = {name: tenant.checks(name) for name in names}
        install(
            fresh.stack, "--set=agent.logLevel=DEBUG", "--set=operator.logLevel=DEBUG", "--set=mps.drainSeconds=1800"
        )
        time.sleep(2)
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.running()} == before
        for name in names:
            assert tenant.checks(name) > checks[name]
        assert mps_uids(fresh) == daemons, "an upgrade must not replace an MPS pod"


def mps_uids(harness: Harness) -> set[str]:
    pods = harness.system.items("pods", "--selector=app.kubernetes.io/component=mps")
    return {pod["metadata"]["uid"] for pod in pods}


def test_explain_tells_units_and_meaning(fresh: Harness) -> None:
    text = fresh.kubectl("explain", "gpushare.spec.clients.memory")
    assert "16Gi" in text
    assert "overcommit" in text


def test_uninstalled_after_its_shares_the_node_is_as_before_and_the_definitions_stay(fresh: Harness) -> None:
    fresh.kubectl.delete("gpushare", "early")
    fresh.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert fresh.kubectl.items("gpushares") == []
    assert fresh.gpu_dirs() == {}
    assert not list(fresh.in_node("/var/run/cdi").glob("*gpushare*"))
    with pytest.raises(CommandError, match="not found"):
        fresh.kubectl("get", "clusterrole", "gpushare-agent")


def test_the_chart_alone_brings_its_definitions(fresh: Harness) -> None:
    fresh.kubectl.delete("crd", "gpushares.gpushare.dev", "gpunodes.gpushare.dev")
    install(fresh.stack)
    with fresh.share("late", per_node=1) as share:
        share.wait_capacity(8)
