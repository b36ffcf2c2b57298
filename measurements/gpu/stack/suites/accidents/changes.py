"""Changes under running clients: limits raised and lowered, the agent restarted, the chart upgraded, the share deleted.

Running clients go on through all of them, check their results, and are never restarted.
"""

from typing import Any

from measurements.gpu.stack import bring
from measurements.gpu.stack.suite import Findings
from tests.cluster.harness import Harness, Share, Tenant, wait_until

SHARE, CLIENTS = "changes", 4
LIMITS = ((50, "12Gi"), (10, "4Gi"))
GONE_SECONDS = 60


def measure(harness: Harness, findings: Findings) -> None:
    with harness.share(SHARE, threads={"default": 25, "max": 50}) as share, harness.namespace() as tenant:
        names = tenant.neighbours(SHARE, CLIENTS)
        before, daemons = _containers(tenant, names), _mps_containers(harness)
        for threads, memory in LIMITS:
            _change_limits(tenant, share, threads, memory, findings)
            tenant.go_on(names)
        harness.restart_pods("agent")
        harness.wait_component("agent")
        tenant.go_on(names)
        bring.upgrade("--set=agent.logLevel=DEBUG")
        harness.wait_component("agent")
        share.wait_ready()
        tenant.go_on(names)
        share.delete(wait=False)
        wait_until("the deletion waits for clients", lambda: _waits(share), GONE_SECONDS, lambda: share.condition())
        tenant.go_on(names)
        findings.figures["share_while_deleted"] = share.condition()
        findings.figures["checks"] = {name: tenant.checks(name) for name in names}
        findings.figures["containers"] = after = _containers(tenant, names)
        findings.expect("no client was restarted or replaced", after == before)
        findings.expect("nor was the MPS daemon", _mps_containers(harness) == daemons)
        tenant.delete_pods()
        gone = wait_until("the share is gone", lambda: harness.kubectl.find("gpushare", SHARE) is None, GONE_SECONDS)
        findings.expect("with its last client the share goes", gone)
    findings.expect("its GPU is given back", not harness.gpu_node()["status"].get("daemons"))


def _change_limits(tenant: Tenant, share: Share, threads: int, memory: str, findings: Findings) -> None:
    share.apply(threads={"default": threads, "max": threads}, memory={"default": memory})
    share.wait_ready()
    name = f"new-{threads}"
    tenant.start(tenant.pod(name, SHARE, "limits"))
    seen = tenant.wait_event(name, "limits")
    findings.figures.setdefault("new_clients", {})[name] = seen
    granted = int(memory.removesuffix("Gi")) << 30
    findings.expect("new clients get the new limits", seen["granted"]["memory"] == granted)
    findings.expect("and find them in force", seen["problems"] == [])


def _waits(share: Share) -> bool:
    return share.condition().get("reason") == "Draining"


def _containers(tenant: Tenant, names: list[str]) -> dict[str, list[Any]]:
    pods = {pod["metadata"]["name"]: pod for pod in tenant.pods()}
    return {
        name: [
            (container["containerID"], container["restartCount"])
            for container in pods[name]["status"]["containerStatuses"]
        ]
        for name in names
    }


def _mps_containers(harness: Harness) -> list[tuple[str, int]]:
    pods = harness.pods_of("mps")
    return [
        (container["containerID"], container["restartCount"])
        for pod in pods
        for container in pod["status"]["containerStatuses"]
    ]
