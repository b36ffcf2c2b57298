"""Whatever of ours is killed: who goes on is what the design says, and everything converges without hands."""

import signal
from collections.abc import Callable, Iterator

import pytest

from localcluster.cluster import processes
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, signal_in_node


def kill_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)
    harness.wait_component("agent")


def kill_operator(harness: Harness) -> None:
    harness.restart_pods("operator", force=True)
    harness.wait_component("operator")


def kill_webhook(harness: Harness) -> None:
    harness.restart_pods("webhook", force=True)
    harness.wait_component("webhook")


def restart_kubelet(harness: Harness) -> None:
    processes.replace(harness.layout, "kubelet", signal.SIGTERM)


ACCIDENTS = [kill_agent, kill_operator, kill_webhook, restart_kubelet]


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("steady", per_node=1) as share:
        yield share


@pytest.fixture(scope="module")
def tenant(harness: Harness, share: Share) -> Iterator[Tenant]:
    """A tenant with clients in all slots: `neighbour-0` and `neighbour-1` go on through all accidents."""
    with harness.namespace() as tenant:
        tenant.neighbours(share.name, 2)
        tenant.start(*(tenant.pod(f"more-{number}", share.name, "depart") for number in range(6)))
        wait_until("all slots are taken", lambda: len(tenant.running()) == 8, 60, tenant.pods)
        yield tenant


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_running_clients_go_on_and_new_ones_start_after(
    harness: Harness, share: Share, tenant: Tenant, accident: Callable[[Harness], None]
) -> None:
    before = [pod["metadata"]["name"] for pod in tenant.running()]
    waiting = f"after-{accident.__name__.replace('_', '-')}"
    tenant.start(tenant.pod(waiting, share.name, "depart"))
    wait_until("the pod waits for a slot", lambda: tenant.unscheduled_message(waiting))

    accident(harness)

    share.wait_ready()
    share.wait_capacity(8)
    tenant.go_on(["neighbour-0", "neighbour-1"])
    assert_no_restart(tenant)
    tenant.delete_pods(next(name for name in before if not name.startswith("neighbour-")))
    wait_until("the waiting pod starts", lambda: len(tenant.running()) == 8, 60, lambda: tenant.pods())


def assert_no_restart(tenant: Tenant) -> None:
    for pod in tenant.pods():
        assert [status["restartCount"] for status in pod["status"].get("containerStatuses", [])] in ([], [0])


def test_after_the_daemon_was_killed_its_clients_end_and_new_ones_run(harness: Harness) -> None:
    """Told in the tiers table: the death of the MPS daemon ends that GPU's clients."""
    with harness.share("daemon", per_node=1) as share, harness.namespace() as tenant:
        clients_end_and_new_ones_run(harness, share, tenant, killed="controlPid")
        assert daemon_of(harness, share)["restarts"] == 1


def test_after_the_server_was_killed_its_clients_end_and_new_ones_run(harness: Harness) -> None:
    with harness.share("server", per_node=1) as share, harness.namespace() as tenant:
        clients_end_and_new_ones_run(harness, share, tenant, killed="serverPid")


def clients_end_and_new_ones_run(harness: Harness, share: Share, tenant: Tenant, killed: str) -> None:
    """`killed`: the process, as the supervisor's state.json names it."""
    names = tenant.neighbours(share.name, 2)
    pid = daemon_of(harness, share)[killed]
    signal_in_node(harness, pid, "KILL")
    for name in names:
        assert tenant.wait_event(name, "gpu-error")["code"] == 806
    wait_until("a successor", lambda: daemon_of(harness, share).get(killed) not in (pid, None))
    check_new_client(tenant, share, "after")


def check_new_client(tenant: Tenant, share: Share, name: str) -> None:
    share.wait_ready()
    share.wait_capacity(8)
    tenant.start_replaced(tenant.pod(name, share.name, "limits"))
    assert tenant.wait_event(name, "limits")["problems"] == []
