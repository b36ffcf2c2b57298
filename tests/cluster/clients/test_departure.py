"""Departure without harm: a client that is killed in mid-kernel takes its neighbours along, unless it leaves first."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.node import without_agent
from tests.cluster.node_events import wait_node_event

KERNEL_MS = "3000"
ENDLESS_MS = "600000"
"""So that the victim is never between two kernels."""


def start_victim_and_neighbours(tenant: Tenant, share: str) -> list[str]:
    start_victim(tenant, share)
    return tenant.neighbours(share, 7)


def start_victim(tenant: Tenant, share: str) -> None:
    tenant.start(tenant.pod("victim", share, "depart", "--role", "victim", "--kernel-ms", ENDLESS_MS, grace=3))
    tenant.wait_event("victim", "started")


def test_a_pod_deleted_in_mid_kernel_leaves_its_seven_neighbours_alive(harness: Harness) -> None:
    with harness.share("guarded", per_node=1), harness.namespace() as tenant:
        names = start_victim_and_neighbours(tenant, "guarded")
        tenant.kubectl.delete("pod", "victim")
        tenant.go_on(names)
        assert len(tenant.running()) == 7
        assert len(ends(tenant, "victim")) == 1
        swept = Tenant(harness, f"{tenant.name}-swept")
        harness.kubectl("create", "namespace", swept.name)
        wait_until("its ServiceAccount", lambda: swept.kubectl.find("serviceaccount", "default"))
        start_victim(swept, "guarded")
        harness.kubectl.delete("namespace", swept.name)
        tenant.go_on(names)


def test_the_same_deletion_without_our_guard_kills_the_neighbours(harness: Harness) -> None:
    """What the simulation imitates from the real GPU, and what the guard is for."""
    with harness.share("unguarded", per_node=1), harness.namespace() as tenant:
        names = start_victim_and_neighbours(tenant, "unguarded")
        with without_agent(harness):
            tenant.kubectl.delete("pod", "victim")
            errors = [tenant.wait_event(name, "gpu-error", seconds=20) for name in names]
        assert [error["code"] for error in errors] == [700] * 7
        # The next agent tells what nobody saw.
        note = wait_node_event(harness, "UnguardedDeparture", f"in order: {tenant.name}/victim.", seconds=60)
        assert "the MPS server has met a fatal fault since" in note
        wait_node_event(harness, "GpuFault", f"{tenant.name}/victim", "It happened while no agent ran", seconds=60)


def ends(tenant: Tenant, name: str) -> list[Object]:
    """What was told of ordered ends of the pod's clients."""
    return [event for event in tenant.kubernetes_events(name) if event["reason"] == "ClientTerminated"]


@contextmanager
def kept(tenant: Tenant, *names: str) -> Iterator[None]:
    """Deleted pods stay to be looked at: a finalizer holds them."""
    for name in names:
        tenant.kubectl("patch", "pod", name, "--type=merge", '--patch={"metadata":{"finalizers":["test.local/kept"]}}')
    try:
        yield
    finally:
        for name in names:
            tenant.kubectl("patch", "pod", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')


def exit_code(tenant: Tenant, name: str) -> int:
    """The exit code of the pod's container, once it has ended; the kubelet tells that after the grace period at the
    latest."""

    def ended() -> list[Object]:
        states = tenant.kubectl.get("pod", name)["status"].get("containerStatuses", [])
        return [status["state"]["terminated"] for status in states if "terminated" in status["state"]]

    return int(wait_until(f"{name} ended", ended, 60, lambda: tenant.explain(name))[0]["exitCode"])


def test_a_client_that_catches_sigterm_has_until_2_s_before_its_end(harness: Harness) -> None:
    """One ends by itself, after its kernel; one goes on, and is ended before the kubelet would do it in mid-kernel."""
    with harness.share("polite", per_node=1), harness.namespace() as tenant:
        names = tenant.neighbours("polite", 2)
        for name, choice, grace in (("finisher", "finish", 20), ("ignorer", "ignore", 8)):
            options = ("--role", "victim", "--kernel-ms", KERNEL_MS, "--on-sigterm", choice)
            tenant.start(tenant.pod(name, "polite", "depart", *options, grace=grace))
        for name in ("finisher", "ignorer"):
            tenant.wait_event(name, "started")
        with kept(tenant, "finisher", "ignorer"):
            tenant.kubectl.delete("pod", "finisher", "ignorer", wait=False)
            [told] = wait_until("the ignorer ended in order", lambda: ends(tenant, "ignorer"), 60)
            assert [exit_code(tenant, name) for name in ("finisher", "ignorer")] == [0, 0]
            assert not ends(tenant, "finisher")
            assert "catches SIGTERM but its time is over" in told["message"]
            killed = tenant.kubectl.get("pod", "ignorer")["metadata"]["deletionTimestamp"]
            assert moment(told["eventTime"]) >= moment(killed) - timedelta(seconds=2)
        tenant.go_on(names)
        assert len(tenant.running()) == 2


def moment(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)
