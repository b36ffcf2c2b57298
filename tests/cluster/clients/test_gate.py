"""No client starts on a GPU whose daemon is not ready: it waits, nothing else on the node does, it starts by itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.harness import Harness, Share, Tenant, has_container, holds_for, is_rejected, wait_until
from tests.cluster.node import daemon_of, parent_of, processes_of_pod, signal_in_node

DOWN_SECONDS = 40


@contextmanager
def daemon_down(harness: Harness, share: Share) -> Iterator[None]:
    """The control daemon is dead and its supervisor stopped, so that nobody brings it back."""
    control = daemon_of(harness, share)["controlPid"]
    supervisor = parent_of(harness, control)
    signal_in_node(harness, supervisor, "STOP")
    try:
        signal_in_node(harness, control, "KILL")
        yield
    finally:
        signal_in_node(harness, supervisor, "CONT")


@pytest.mark.long
def test_a_daemon_that_takes_40_s_keeps_only_its_own_clients_waiting(harness: Harness) -> None:
    with harness.share("slow", per_node=1) as share, harness.namespace() as tenant:
        tenant.start(tenant.pod("restarting", "slow", "limits", "--hold", "3600", restart="Always"))
        tenant.wait_event("restarting", "limits")
        began = time.monotonic()
        with daemon_down(harness, share):
            wait_until("not ready is told", lambda: share.condition()["status"] == "False", 30)
            end_container(harness, tenant, "restarting")
            tenant.start(tenant.pod("fresh", "slow", "limits", "--hold", "60"))
            plain = tenant.pod("bystander", "slow", "list", command=["gpushare-workload", "list"])
            del plain["spec"]["containers"][0]["resources"]
            tenant.start(plain)
            wait_until("another pod of the node ends", lambda: phase(tenant, "bystander") == "Succeeded", 20)
            remaining = DOWN_SECONDS - (time.monotonic() - began)
            holds_for("a client started without a daemon", lambda: not running(tenant), max(remaining, 5))
            if is_rejected(tenant.kubectl.get("pod", "fresh")):
                # It came when its slot had just been withdrawn, and before the scheduler had heard of that.
                tenant.kubectl.delete("pod", "fresh")
                tenant.start(tenant.pod("fresh", "slow", "limits", "--hold", "60"))
        for name in ("fresh", "restarting"):
            assert tenant.wait_event(name, "limits", seconds=60)["problems"] == []


def end_container(harness: Harness, tenant: Tenant, name: str) -> None:
    """The client's main process ends as by a crash of its own; the kubelet wants to start it again."""
    uid = tenant.kubectl.get("pod", name)["metadata"]["uid"]
    for pid in processes_of_pod(harness, uid, b"gpushare-workload"):
        signal_in_node(harness, pid, "KILL")


def phase(tenant: Tenant, name: str) -> str:
    return str(tenant.kubectl.get("pod", name)["status"].get("phase"))


def running(tenant: Tenant) -> list[str]:
    return [pod["metadata"]["name"] for pod in tenant.pods() if has_container(pod)]
