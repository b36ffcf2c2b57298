"""Departure without harm: a client that is killed in mid-kernel takes its neighbours along, unless it leaves first."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.harness import Harness, Tenant, wait_until

KERNEL_MS = "3000"


def start_victim_and_neighbours(tenant: Tenant, share: str) -> list[str]:
    tenant.start(tenant.pod("victim", share, "depart", "--role", "victim", "--kernel-ms", KERNEL_MS, grace=3))
    tenant.wait_event("victim", "started")
    return tenant.neighbours(share, 7)


def test_a_pod_deleted_in_mid_kernel_leaves_its_seven_neighbours_alive(harness: Harness) -> None:
    with harness.share("guarded", per_node=1), harness.namespace() as tenant:
        names = start_victim_and_neighbours(tenant, "guarded")
        tenant.kubectl.delete("pod", "victim")
        after = {name: tenant.checks(name) for name in names}
        for name in names:
            tenant.wait_checks(name, above=after[name])
        assert len(tenant.running()) == 7
        told = [it for it in tenant.kubernetes_events("victim") if it["reason"] == "ClientTerminated"]
        assert len(told) == 1


@contextmanager
def without_agent(harness: Harness) -> Iterator[None]:
    """Nobody on the node: the agent's pods are sent away and come back afterwards."""
    away = '{"spec":{"template":{"spec":{"nodeSelector":{"no-such": "node"}}}}}'
    back = '{"spec":{"template":{"spec":{"nodeSelector":{"no-such": null}}}}}'
    selector = "--selector=app.kubernetes.io/component=agent"
    harness.system("patch", "daemonset", "gpushare-agent", "--patch", away)
    wait_until("the agent is gone", lambda: not harness.system.items("pods", selector), 60)
    try:
        yield
    finally:
        harness.system("patch", "daemonset", "gpushare-agent", "--patch", back)
        harness.wait_component("agent")


def test_the_same_deletion_without_our_guard_kills_the_neighbours(harness: Harness) -> None:
    """What the simulation imitates from the real GPU, and what the guard is for."""
    with harness.share("unguarded", per_node=1), harness.namespace() as tenant:
        names = start_victim_and_neighbours(tenant, "unguarded")
        with without_agent(harness):
            tenant.kubectl.delete("pod", "victim")
            errors = [tenant.wait_event(name, "gpu-error", seconds=20) for name in names]
        assert [error["code"] for error in errors] == [700] * 7


def test_a_client_that_catches_sigterm_ends_by_itself(harness: Harness) -> None:
    with harness.share("polite", per_node=1), harness.namespace() as tenant:
        tenant.neighbours("polite", 2)
        tenant.start(tenant.pod("leaver", "polite", "depart", grace=20))
        tenant.wait_event("leaver", "progress")
        tenant.kubectl.delete("pod", "leaver")
        assert not [it for it in tenant.kubernetes_events("leaver") if it["reason"] == "ClientTerminated"]
        assert len(tenant.running()) == 2
