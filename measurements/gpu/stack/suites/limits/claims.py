"""Clients of different sizes on one GPU, by ResourceClaim: each finds its own limits, all at once. They go on while the
agent restarts and while one of them is deleted in mid-kernel. After the last of them nothing is left.
"""

import time
from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster import claims
from tests.cluster.harness import Harness, Tenant, wait_until

SHARE = "claims"
FREE = {"tiny": ("5", "1Gi"), "odd": ("33", "20000Mi")}
LATER = ("10", "2Gi")
CLIENTS = 5
KERNEL_MS = 1000
GONE_SECONDS = 60


def measure(harness: Harness, findings: Findings) -> None:
    options: dict[str, Any] = {
        "per_node": 1,
        "delivery": "ResourceClaim",
        "sizes": claims.SIZES,
        "threads": {"default": 20, "max": 60},
        "memory": {"default": "4Gi", "max": "64Gi"},
    }
    with harness.share(SHARE, **options), harness.namespace() as tenant:
        claims.wait_template(tenant, "small", SHARE)
        with findings.phase("limits"):
            findings.figures["clients"] = _limits(tenant, findings)
            wait_until("all have a part at once", lambda: sum(harness.held_by_gpu(SHARE).values()) == CLIENTS)
            tenant.delete_pods()
        tenant.start(claims.claimed(tenant, "neighbour", SHARE, *LATER, "depart", "--report-every", "0.3"))
        tenant.wait_event("neighbour", "progress")
        with findings.phase("the agent restarts"):
            harness.restart_pods("agent")
            harness.wait_component("agent")
            tenant.go_on(["neighbour"])
        with findings.phase("a deletion in mid-kernel"):
            _deletion(tenant, findings)
        tenant.go_on(["neighbour"])
        findings.expect("the neighbour goes on", parts.alive(tenant, ["neighbour"]) == ["neighbour"])
        findings.figures["neighbour_checks"] = tenant.checks("neighbour")
    left = wait_until("no claim is left", lambda: not claims.claim_specs(harness), GONE_SECONDS)
    findings.expect("with the last client nothing is left on the node", left)


def _limits(tenant: Tenant, findings: Findings) -> dict[str, Any]:
    """Two claims with figures of their own, one of a named size, and two slots, of which one asks for less."""
    began = time.monotonic()
    lowered = {"gpushare.dev/threads": "10"}
    pods: dict[str, Object] = {
        **{name: claims.claimed(tenant, name, SHARE, *asked) for name, asked in FREE.items()},
        "small": claims.sized(tenant, "small", SHARE, "small"),
        "slot": tenant.pod("slot", SHARE, *claims.HELD),
        "lowered": tenant.pod("lowered", SHARE, *claims.HELD, annotations=lowered),
    }
    tenant.start(*pods.values())
    seen = {name: tenant.wait_event(name, "limits") for name in pods}
    seconds = round(time.monotonic() - began, 2)
    granted = {name: (client["granted"]["threads"], client["granted"]["memory"] >> 20) for name, client in seen.items()}
    findings.expect(
        "each is granted what it asked for",
        granted
        == {"tiny": (5, 1024), "odd": (33, 20000), "small": (10, 2048), "slot": (20, 4096), "lowered": (10, 4096)},
    )
    findings.expect("and finds it in force", not any(client["problems"] for client in seen.values()))
    findings.expect("each is refused more memory", all(client["observed"]["above_refused"] for client in seen.values()))
    if not findings.simulated:
        for name in pods:
            seen[name]["throughput"] = tenant.wait_event(name, "throughput")
    findings.figures["seconds_until_all_have_their_limits"] = seconds
    return seen


def _deletion(tenant: Tenant, findings: Findings) -> None:
    options = ("--role", "victim", "--kernel-ms", str(KERNEL_MS))
    tenant.start(claims.claimed(tenant, "victim", SHARE, *LATER, "depart", *options))
    tenant.wait_event("victim", "started")
    time.sleep(KERNEL_MS / 2000)
    tenant.kubectl.delete("pods", "victim")
    findings.expect(
        "a client deleted in mid-kernel is ended through the daemon", parts.ended_in_order(tenant, "victim")
    )
