"""Pods that are deleted in mid-kernel, one after the other, beside seven neighbours that check every result."""

import time
from typing import Any

from tests.cluster.harness import POLL, Harness, Tenant, wait_until
from tests.gpu.stack.suite import Findings

SHARE, NEIGHBOURS = "departures", 7
KERNELS_MS = (20, 100, 1000)
"""All longer than the 10 ms from which an unguarded kill ends the neighbours."""
DELETIONS = 4
"""With each length of kernel."""
GRACE_SECONDS = 5
GONE_SECONDS = 60
TOLD_SECONDS = 10


def measure(harness: Harness, findings: Findings) -> None:
    findings.figures["deletions"] = deletions = list[dict[str, Any]]()
    with harness.share(SHARE, per_gpu=NEIGHBOURS + 1), harness.namespace() as tenant:
        names = tenant.neighbours(SHARE, NEIGHBOURS)
        for kernel_ms in KERNELS_MS:
            for number in range(DELETIONS):
                deletions.append(_delete_one(tenant, f"victim-{kernel_ms}-{number}", kernel_ms))
                checks = {name: tenant.checks(name) for name in names}
                for name in names:
                    tenant.wait_checks(name, above=checks[name])
        findings.figures["neighbours"] = {name: tenant.log(name)[-1] for name in names}
        findings.figures["checks"] = sum(tenant.checks(name) for name in names)
        restarts = [it["restartCount"] for pod in tenant.running() for it in pod["status"]["containerStatuses"]]
        findings.expect("all neighbours go on", len(tenant.running()) == NEIGHBOURS and not any(restarts))
        wrong = [line for name in names for line in tenant.log(name) if line["event"] in ("wrong", "gpu-error")]
        findings.expect("none of their results was wrong", not wrong)
    findings.expect("each client was ended through the daemon", all(it["ended_in_order"] for it in deletions))


def _delete_one(tenant: Tenant, name: str, kernel_ms: int) -> dict[str, Any]:
    options = ("--role", "victim", "--kernel-ms", str(kernel_ms))
    tenant.start(tenant.pod(name, SHARE, "depart", *options, grace=GRACE_SECONDS))
    tenant.wait_event(name, "started")
    time.sleep(2.5 * kernel_ms / 1000)
    began = time.monotonic()
    tenant.kubectl.delete("pod", name, wait=False)
    wait_until(f"{name} is gone", lambda: tenant.kubectl.find("pod", name) is None, GONE_SECONDS)
    took = round(time.monotonic() - began, 2)
    return {"kernel_ms": kernel_ms, "seconds_until_gone": took, "ended_in_order": _told(tenant, name)}


def _told(tenant: Tenant, name: str) -> bool:
    """Whether an event says that the pod's client was ended through the daemon; it may come after the pod's end."""
    end = time.monotonic() + TOLD_SECONDS
    while time.monotonic() < end:
        if any(it["reason"] == "ClientTerminated" for it in tenant.kubernetes_events(name)):
            return True
        time.sleep(POLL)
    return False
