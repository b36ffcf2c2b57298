"""Slots through restarts of whatever there is on a node, as Kubernetes tests device plugins: conformance.md."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from localcluster.cluster import processes
from localcluster.kubectl import Object
from tests.cluster import claims
from tests.cluster.claims import SIZES
from tests.cluster.clients.test_gate import end_container
from tests.cluster.harness import NODE, Harness, Share, Tenant, condition, is_ready, wait_until
from tests.cluster.node import without_agent

pytestmark = pytest.mark.long

HOLD = ("limits", "--hold", "3600")


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("kept", per_node=1) as share:
        share.wait_capacity(8)
        yield share


@pytest.fixture
def tenant(harness: Harness, share: Share) -> Iterator[Tenant]:
    with harness.namespace("kept") as tenant:
        yield tenant


def restart_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)
    harness.wait_component("agent")


def restart_kubelet(harness: Harness) -> None:
    processes.replace(harness.layout, "kubelet", signal.SIGTERM)


def restart_both(harness: Harness) -> None:
    restart_kubelet(harness)
    restart_agent(harness)


def slot_of(tenant: Tenant, name: str) -> tuple[str, str]:
    """(slot, its health) of a pod's container, as the kubelet reports it."""
    (status,) = tenant.kubectl.get("pod", name)["status"].get("containerStatuses") or [{}]
    statuses = status.get("allocatedResourcesStatus") or []
    if not statuses:
        return "", ""
    (resource,) = statuses[0]["resources"]
    return str(resource["resourceID"]), str(resource["health"])


def restarts(tenant: Tenant, name: str) -> int:
    (status,) = tenant.kubectl.get("pod", name)["status"].get("containerStatuses") or [{}]
    return int(status.get("restartCount", 0)) if "running" in status.get("state", {}) else -1


def test_a_container_keeps_its_slot_when_it_agent_and_kubelet_restart(
    harness: Harness, share: Share, tenant: Tenant
) -> None:
    names = ("one", "two")
    tenant.start(*(tenant.pod(name, "kept", *HOLD, restart="Always") for name in names))
    for name in names:
        assert tenant.wait_event(name, "limits")["problems"] == []
    slots = wait_until("both slots", lambda: both_healthy(tenant, names))
    assert len(set(slots)) == len(names)
    accidents: list[Callable[[Harness], None]] = [restart_kubelet, restart_agent, restart_both]
    for number in range(2):  # each further restart of a container waits longer
        end_container(harness, tenant, "one")
        wait_until("it runs again", lambda number=number: restarts(tenant, "one") == number + 1, 120,
                   lambda: tenant.explain("one"))  # fmt: skip
        assert tenant.wait_event("one", "limits")["problems"] == []
        assert wait_until("both slots", lambda: both_healthy(tenant, names), 60) == slots
        for accident in accidents if number == 0 else ():
            accident(harness)
            assert wait_until("both slots", lambda: both_healthy(tenant, names), 60) == slots
    assert restarts(tenant, "two") == 0
    share.wait_capacity(8)


def both_healthy(tenant: Tenant, names: tuple[str, ...]) -> list[str]:
    slots = [slot_of(tenant, name) for name in names]
    return [slot for slot, _ in slots] if all(health == "Healthy" for _, health in slots) else []


def test_a_succeeded_pod_stays_so_when_the_kubelet_restarts_without_agent(
    harness: Harness, share: Share, tenant: Tenant
) -> None:
    tenant.start(tenant.pod("done", "kept", "limits"))
    assert tenant.wait_ended("done") == "Succeeded"
    with without_agent(harness):
        restart_kubelet(harness)
        wait_until("the kubelet reports", lambda: node_is_ready(harness), 60)
        assert tenant.kubectl.get("pod", "done")["status"]["phase"] == "Succeeded"
    share.wait_capacity(8, 60)
    assert tenant.kubectl.get("pod", "done")["status"]["phase"] == "Succeeded"


def node_is_ready(harness: Harness) -> bool:
    return is_ready(harness.kubectl.get("node", NODE))


def test_slots_of_pods_force_deleted_without_a_kubelet_are_free_again(
    harness: Harness, share: Share, tenant: Tenant
) -> None:
    names = [f"orphan-{number}" for number in range(8)]
    tenant.start(*(tenant.pod(name, "kept", *HOLD) for name in names))
    for name in names:
        tenant.wait_event(name, "limits")
    os.kill(processes.components(harness.layout)["kubelet"].pid, signal.SIGSTOP)
    try:
        tenant.kubectl.delete("pods", *names, "--force", "--grace-period=0", wait=False)
    finally:
        processes.replace(harness.layout, "kubelet", signal.SIGKILL)
    wait_until("nobody holds a slot", lambda: not harness.held_by_gpu("kept"), 90)
    share.wait_capacity(8, 60)
    tenant.start_replaced(tenant.pod("after", "kept", "limits"))
    assert tenant.wait_event("after", "limits")["problems"] == []


CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


@pytest.mark.parametrize("restarted", [restart_agent, lambda _: None], ids=["agent-restarts-too", "agent-stays"])
def test_clients_keep_slots_that_the_kubelet_forgot(
    harness: Harness, share: Share, tenant: Tenant, restarted: Callable[[Harness], None]
) -> None:
    """As after a power cut: the kubelet never lists them again, and would give their slots to others."""
    olds = tenant.neighbours("kept", 3, prefix="old")
    os.kill(processes.components(harness.layout)["kubelet"].pid, signal.SIGSTOP)
    try:
        harness.in_node(CHECKPOINT).unlink()
    finally:
        processes.replace(harness.layout, "kubelet", signal.SIGKILL)
    restarted(harness)
    message = wait_until("the pods are named", lambda: named_as_forgotten(harness), 120, lambda: harness.gpu_node())
    assert all(f"{tenant.name}/{name}" in message for name in olds)
    share.wait_capacity(8, 60)
    assert sum(harness.held_by_gpu("kept").values()) == 3
    news = [f"new-{number}" for number in range(5)]
    for name in news:
        tenant.start_replaced(tenant.pod(name, "kept", *HOLD))
    for name in news:
        assert tenant.wait_event(name, "limits")["problems"] == []
    tenant.go_on(olds)
    tenant.start(tenant.pod("ninth", "kept", *HOLD))
    wait_until("the ninth is unschedulable", lambda: tenant.unscheduled_message("ninth"))
    tenant.delete_pods(*olds)
    assert tenant.wait_event("ninth", "limits")["problems"] == []
    wait_until("nobody is named", lambda: not named_as_forgotten(harness), 60, lambda: harness.gpu_node())


def named_as_forgotten(harness: Harness) -> str:
    message = str(condition(harness.gpu_node(), "KubeletReachable").get("message", ""))
    return message if "kubelet_internal_checkpoint" in message else ""


def test_after_a_reboot_shares_serve_slots_and_claims_of_controllers_again(harness: Harness, share: Share) -> None:
    """A reboot ends every container and empties /run; what is left are the kubelet's checkpoints."""
    with (
        harness.share("lent", delivery="ResourceClaim", sizes=SIZES, per_node=1) as lent,
        harness.namespace("reboot") as tenant,
    ):
        claims.wait_template(tenant, "small", "lent")
        by_slot = tenant.pod("by-slot", share.name, *HOLD, restart="Always")
        by_claim = claims.sized(tenant, "by-claim", "lent", "small", *HOLD, restart="Always")
        tenant.kubectl.create(deployment(by_slot), deployment(by_claim))
        before = {
            app: wait_until("it runs", lambda app=app: client_of(tenant, app), 90) for app in ("by-slot", "by-claim")
        }
        reboot(harness)
        for waiting in (share, lent):
            waiting.wait_ready(seconds=120)
        share.wait_capacity(8, 90)
        for app, old in before.items():
            wait_until(f"{app} runs anew", lambda app=app, old=old: client_of(tenant, app) not in (old, ""), 120,
                       lambda: tenant.pods())  # fmt: skip


def deployment(pod: Object) -> Object:
    name = pod["metadata"]["name"]
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


def client_of(tenant: Tenant, app: str) -> str:
    """The container's id of a running client that has found its limits in force; empty: there is none."""
    for pod in tenant.kubectl.items("pods", f"--selector=app={app}"):
        for status in pod["status"].get("containerStatuses") or ():
            limits = tenant.events_of(pod["metadata"]["name"], "limits") if "running" in status["state"] else []
            if limits and limits[0]["problems"] == []:
                return str(status["containerID"])
    return ""


def reboot(harness: Harness) -> None:
    """All containers of the node end at once, ours too, while the kubelet is away, and /run loses our files."""
    os.kill(processes.components(harness.layout)["kubelet"].pid, signal.SIGSTOP)
    try:
        for process in processes.everything(harness.layout):
            with suppress(OSError):  # it has just ended
                if "kubepods" in Path(f"/proc/{process.pid}/cgroup").read_text():
                    os.kill(process.pid, signal.SIGKILL)
        for path in harness.in_node("/var/run/cdi").glob("*gpushare*"):
            path.unlink()
        for directory in ("/run/gpushare", "/run/gpushare-simulation"):
            for entry in harness.in_node(directory).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    finally:
        processes.replace(harness.layout, "kubelet", signal.SIGKILL)
