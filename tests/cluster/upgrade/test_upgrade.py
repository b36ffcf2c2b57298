"""Upgrades from the release before to this one, halfway, and back: clients go on, and pods start in each state between
the two.

Opt-in (`make upgrade-test`), because it builds the images of two releases. The states follow each other, as those of an
upgrade do; in each of them the same life goes on (`life`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localcluster.cluster import cluster
from localcluster.stack import NAMESPACE, RELEASE, Stack, embedded, install
from tests.cluster import claims, conftest
from tests.cluster.claims import SIZES
from tests.cluster.harness import Harness, Share, wait_until
from tests.cluster.shares.test_changes import mps_pod, uid, wait_condition
from tests.cluster.upgrade.before import BEFORE, release_before
from tests.cluster.upgrade.life import CLAIMED, SLOTTED, Life

CLUSTER = f"{conftest.CLUSTER}-up"
AGENT, OPERATOR, WEBHOOK = "daemonset/gpushare-agent", "deployment/gpushare-operator", "deployment/gpushare-webhook"

FORCE = "--force-conflicts"
"""`rollout undo` changes images by kubectl, which Helm does not take back by itself."""


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if not request.config.getoption("--upgrade"):
        pytest.skip("builds the release before: make upgrade-test")
    stack = embedded(CLUSTER)
    try:
        yield Harness(stack)
    finally:
        if not request.config.getoption("--keep-cluster"):
            cluster.down(CLUSTER)


@pytest.fixture(scope="module")
def before(request: pytest.FixtureRequest, fresh: Harness) -> Stack:
    return release_before(fresh, request.config.getoption("--before") or BEFORE.read_text().strip())


@contextmanager
def life_of(harness: Harness, stack: Stack) -> Iterator[Life]:
    """The life under the release of `stack`, with clients of its images."""
    install(stack)
    with (
        harness.share(SLOTTED, per_node=1) as slotted,
        harness.share(CLAIMED, per_node=1, delivery="ResourceClaim", sizes=SIZES) as claimed,
        harness.namespace() as tenant,
    ):
        claims.wait_template(tenant, "small", CLAIMED)
        life = Life(harness, tenant, slotted, claimed)
        life.start(SLOTTED, stack)
        life.start(CLAIMED, stack)
        yield life


def undo(harness: Harness, *workloads: str) -> None:
    """Changes to the pods of the other release, as while an upgrade has not come there yet; a second time: forth
    again."""
    for workload in workloads:
        harness.system("rollout", "undo", workload)
    for workload in workloads:
        harness.system("rollout", "status", workload, "--timeout=120s", seconds=130)


def image_of(harness: Harness, share: Share) -> str:
    pod = mps_pod(harness, share) or {"spec": {"containers": [{"image": ""}]}}
    return str(pod["spec"]["containers"][0]["image"])


def roll(life: Life, share: Share, stack: Stack) -> None:
    """The share's clients depart, and its MPS pod becomes one of the release of `stack`."""
    old = uid(life.harness, share)
    life.leave(share.name)
    wait_until("another MPS pod", lambda: uid(life.harness, share) not in ("", old), 90, share.get)
    assert image_of(life.harness, share) == stack.operator_image
    share.wait_ready(seconds=90)


def test_clients_go_on_through_an_upgrade_that_stops_halfway_and_back(fresh: Harness, before: Stack) -> None:
    now = fresh.stack
    assert before.operator_image != now.operator_image
    with life_of(fresh, before) as life:
        slotted, claimed = life.slotted, life.claimed
        servers = life.servers()
        life.goes_on(before)

        install(now, keep_driver=True)
        for share in (slotted, claimed):
            wait_condition(share, "WaitingForClients")
        life.goes_on(now)
        undo(fresh, AGENT)
        life.goes_on(now)
        undo(fresh, AGENT, OPERATOR, WEBHOOK)
        life.goes_on(before)
        undo(fresh, OPERATOR, WEBHOOK)
        assert life.servers() == servers, "an upgrade must not replace an MPS daemon that has clients"
        assert {image_of(fresh, slotted), image_of(fresh, claimed)} == {before.operator_image}

        roll(life, slotted, now)
        fresh.kubectl("patch", "gpushare", SLOTTED, "--type=merge", '--patch={"spec":{"clients":{"placement":"Pack"}}}')
        life.start(SLOTTED, now)
        servers = life.servers()
        life.goes_on(now)
        undo(fresh, AGENT)
        life.goes_on(now)

        way_back = ("rollback", RELEASE, "1", "--namespace", NAMESPACE, FORCE)
        fresh.stack.helm(*way_back, "--wait", "--timeout=180s", seconds=200)
        wait_condition(slotted, "WaitingForClients")
        wait_condition(claimed, "DaemonsCurrent")
        assert "placement" not in slotted.get()["spec"]["clients"], "the older definition does not know it"
        life.goes_on(before)
        assert life.servers() == servers, "nor must the way back"
        roll(life, slotted, before)
        life.start(SLOTTED, before)
        life.goes_on(before)

        install(now, FORCE, keep_driver=True)
        for share in (slotted, claimed):
            roll(life, share, now)
            wait_condition(share, "DaemonsCurrent")
        life.goes_on(now)
    wait_until("nothing is left", lambda: fresh.gpu_dirs() == {}, 60)
