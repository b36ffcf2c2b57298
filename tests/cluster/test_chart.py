"""Installing in either order, upgrading with clients running, uninstalling: as an administrator does it."""

import json
from collections.abc import Iterator

import pytest

from localcluster.cluster import cluster
from localcluster.kubectl import CommandError
from localcluster.paths import REPOSITORY
from localcluster.stack import NAMESPACE, RELEASE, embedded, install
from tests.cluster import conftest
from tests.cluster.harness import Harness, Share, is_ready, wait_until

pytestmark = pytest.mark.takes(90)
DELETING = ("--set=uninstall.shares=Delete", "--set=uninstall.timeoutSeconds=10")
CLUSTER = f"{conftest.CLUSTER}-chart"
DEFINITIONS = ("gpushares.gpushare.dev", "gpunodes.gpushare.dev")


@pytest.fixture(scope="module")
def fresh() -> Iterator[Harness]:
    """A cluster of its own, because these tests remove what the others need. Nothing may be installed on it yet."""
    stack = embedded(CLUSTER)
    try:
        yield Harness(stack)
    finally:
        cluster.down(CLUSTER)


@pytest.fixture
def installed(fresh: Harness) -> Harness:
    """The chart with its default values, whatever an earlier test left; no GpuShare."""
    install(fresh.stack)
    remove_shares(fresh)
    return fresh


@pytest.fixture
def bare(fresh: Harness) -> Harness:
    """Neither the chart nor the definitions, whatever an earlier test left."""
    if fresh.kubectl.find("crd", DEFINITIONS[0]):
        install(fresh.stack)
        remove_shares(fresh)
        uninstall(fresh)
        fresh.kubectl.delete("crd", *DEFINITIONS)
    return fresh


def remove_shares(harness: Harness) -> None:
    harness.kubectl.delete("gpushares", "--all", seconds=90)


@pytest.fixture
def early(installed: Harness) -> Iterator[Share]:
    with installed.share("early", per_gpu=4) as share:
        yield share


def test_definitions_applied_by_hand_before_the_chart_are_left_as_they_are(bare: Harness) -> None:
    bare.kubectl("apply", "-f", str(REPOSITORY / "crds"))
    bare.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in DEFINITIONS))
    share = Share(bare, "first")
    share.apply(per_gpu=4)
    uids = {name: bare.kubectl.get("crd", name)["metadata"]["uid"] for name in DEFINITIONS}
    install(bare.stack)
    try:
        share.wait_ready(gpus=2)
        assert {name: bare.kubectl.get("crd", name)["metadata"]["uid"] for name in DEFINITIONS} == uids
    finally:
        share.delete()


def test_an_upgrade_with_clients_running_restarts_none_of_them(fresh: Harness, early: Share) -> None:
    with fresh.namespace() as tenant:
        names = tenant.neighbours("early", 2)
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.pods()}
        daemons = mps_uids(fresh)
        install(
            fresh.stack, "--set=agent.logLevel=DEBUG", "--set=operator.logLevel=DEBUG", "--set=mps.drainSeconds=1800"
        )
        tenant.go_on(names)
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tenant.running()} == before
        assert mps_uids(fresh) == daemons, "an upgrade must not replace an MPS pod"


def mps_uids(harness: Harness) -> set[str]:
    pods = harness.system.items("pods", "--selector=app.kubernetes.io/component=mps")
    return {pod["metadata"]["uid"] for pod in pods}


def test_explain_tells_units_and_meaning(installed: Harness) -> None:
    text = installed.kubectl("explain", "gpushare.spec.clients.memory")
    assert "16Gi" in text
    assert "overcommit" in text


def uninstall(harness: Harness, *options: str) -> None:
    harness.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", *options)


def test_an_uninstallation_while_there_is_a_share_is_refused_and_changes_nothing(fresh: Harness, early: Share) -> None:
    with fresh.namespace() as tenant:
        (name,) = tenant.neighbours("early", 1)
        daemons, revision = mps_uids(fresh), deployed_revision(fresh)
        with pytest.raises(CommandError, match=r"1 GpuShare \(early\) would be left"):
            uninstall(fresh)
        checks = tenant.checks(name)
        wait_until("the client goes on", lambda: tenant.checks(name) > checks)
        assert mps_uids(fresh) == daemons
        assert is_ready(fresh.kubectl.get("gpushare", "early"))
        fresh.stack.helm("rollback", RELEASE, revision, "--namespace", NAMESPACE)
        assert deployed_revision(fresh), "the release is in use again"


def deployed_revision(harness: Harness) -> str:
    """The release's revision in use, as `helm rollback` takes it; empty where none is."""
    history = json.loads(harness.stack.helm("history", RELEASE, "--namespace", NAMESPACE, "-o", "json"))
    return next((str(it["revision"]) for it in history if it["status"] == "deployed"), "")


def test_uninstalled_after_its_shares_the_node_is_as_before_and_the_definitions_stay(
    fresh: Harness, early: Share
) -> None:
    early.delete()
    uninstall(fresh)
    assert fresh.kubectl.items("gpushares") == []
    assert fresh.gpu_dirs() == {}
    assert not list(fresh.in_node("/var/run/cdi").glob("*gpushare*"))
    with pytest.raises(CommandError, match="not found"):
        fresh.kubectl("get", "clusterrole", "gpushare-agent")


def test_the_chart_alone_brings_its_definitions(bare: Harness) -> None:
    install(bare.stack)
    with bare.share("late", per_node=1) as share:
        share.wait_capacity(8)


def test_a_share_left_behind_past_the_hook_goes_with_the_next_installation(fresh: Harness, installed: Harness) -> None:
    """As after `helm uninstall --no-hooks`: operator and agent are gone while the share is deleted."""
    with fresh.share("stranded", per_node=1) as share:
        uninstall(fresh, "--no-hooks")
        share.delete(wait=False)
        assert fresh.gpu_dirs(), "nobody is there to give the GPU back"
        assert "gpushare.dev/drain" in share.get()["metadata"]["finalizers"]
        install(fresh.stack, *DELETING)
        wait_until("the share is gone", lambda: not fresh.kubectl.find("gpushare", "stranded"), 90)
        assert fresh.gpu_dirs() == {}
        assert {gpu["computeMode"] for gpu in fresh.gpu_node()["status"]["gpus"]} == {"Default"}
        wait_until("its MPS pod has ended", lambda: not mps_uids(fresh))


def test_where_it_was_chosen_an_uninstallation_deletes_the_shares_and_waits_for_their_clients(
    fresh: Harness, installed: Harness
) -> None:
    install(fresh.stack, *DELETING)
    with fresh.share("chosen", per_node=1) as share, fresh.namespace() as tenant:
        (name,) = tenant.neighbours("chosen", 1)
        with pytest.raises(CommandError, match=rf"waiting for pod {tenant.name}/{name} to end"):
            uninstall(fresh)
        checks = tenant.checks(name)
        wait_until("the client goes on", lambda: tenant.checks(name) > checks)
        tenant.delete_pods()
        wait_until("the share is gone", lambda: not fresh.kubectl.find("gpushare", share.name), 60)
        uninstall(fresh)
        assert fresh.gpu_dirs() == {}
