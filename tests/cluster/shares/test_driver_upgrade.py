"""A driver that is replaced: the node's shares and its agent let go of it without harm, and come back.

A stand-in for the upgrade controller of NVIDIA's GPU Operator writes the states of an upgrade to the node's labels; its
driver container could unload the driver while none of our pods that has it open is on the node.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.harness import NODE, Harness, Share, Tenant, condition, wait_until

STATE = "nvidia.com/gpu-driver-upgrade-state"
CLIENTS = "nvidia.com/gpu.deploy.client"


@contextmanager
def upgrades(harness: Harness) -> Iterator[None]:
    """Whatever happens, the node has its driver afterwards, and its agent."""
    try:
        yield
    finally:
        label(harness, f"{STATE}-", f"{CLIENTS}-")
        harness.wait_component("agent", 90)


def label(harness: Harness, *labels: str) -> None:
    harness.kubectl("label", "node", NODE, "--overwrite", *labels)


def holders_of_the_driver(harness: Harness) -> list[str]:
    """Our pods on the node that have the driver open."""
    selector = "--selector=app.kubernetes.io/component in (agent,mps)"
    return [pod["metadata"]["name"] for pod in harness.system.items("pods", selector)]


def unloaded(harness: Harness) -> None:
    wait_until("nobody has the driver open", lambda: not holders_of_the_driver(harness), 90,
               lambda: (holders_of_the_driver(harness), harness.gpu_node()["status"]))  # fmt: skip


def serves_again(harness: Harness, share: Share, tenant: Tenant) -> None:
    share.wait_ready(seconds=120)
    wait_until("slots", lambda: harness.capacity(share.name) > 0, 30)
    reporting = condition(harness.gpu_node(), "AgentReporting")
    assert reporting["status"] == "True"
    tenant.start_replaced(tenant.pod("afterwards", share.name, "limits"))
    assert tenant.wait_ended("afterwards") == "Succeeded"


@pytest.mark.long
def test_shares_and_agent_let_go_of_the_driver_after_clients_and_come_back(harness: Harness) -> None:
    with harness.share("upgraded") as share, harness.namespace() as tenant, upgrades(harness):
        (client,) = tenant.neighbours("upgraded", 1)
        label(harness, f"{STATE}=upgrade-required")
        label(harness, f"{STATE}=wait-for-jobs-required")
        share.wait_capacity(1)
        unavailable = {group["reason"]: group["message"] for group in share.get()["status"]["unavailable"]}
        assert f"{STATE}=wait-for-jobs-required" in unavailable["DriverUpgrading"]
        tenant.go_on([client])
        assert any(name.startswith("gpushare-agent") for name in holders_of_the_driver(harness)), "it guards departures"
        tenant.delete_pods(client)
        unloaded(harness)
        assert harness.gpu_dirs() == {}
        label(harness, f"{STATE}=pod-restart-required")
        wait_until("nothing is wrong", lambda: was_sent_away(harness), 80)
        label(harness, f"{STATE}=uncordon-required")
        serves_again(harness, share, tenant)
        assert "gpushare.dev/driver-released" not in harness.kubectl.get("node", NODE)["metadata"]["labels"]


def was_sent_away(harness: Harness) -> bool:
    """Tells whether the agent was sent away, as the API says once the agent's heartbeat is old."""
    reporting = condition(harness.gpu_node(), "AgentReporting")
    if reporting.get("status") != "Unknown":
        return False
    assert "while its driver is replaced" in reporting["message"]
    kinds = {event["type"] for event in harness.cluster_events("GpuNode", NODE, "AgentSilent")}
    return kinds == {"Normal"}


def test_a_paused_label_with_maxwait_ends_clients_in_order_and_awaits_pods(harness: Harness) -> None:
    with harness.share("paused", maxWait="5s") as share, harness.namespace() as tenant, upgrades(harness):
        names = tenant.neighbours("paused", 2)
        label(harness, f"{CLIENTS}=paused-for-driver-upgrade")
        for name in names:
            assert tenant.wait_event(name, "gpu-error")["code"] == 810
        unloaded(harness)
        label(harness, f"{CLIENTS}=true")
        serves_again(harness, share, tenant)
