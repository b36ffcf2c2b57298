"""Pods that are deleted in mid-kernel, many times, beside seven neighbours that check every result.

With gpushare's guard no neighbour may be hurt. The same without an agent on the node shows the reason for the guard: a
round ends with the first pod whose end hurts a neighbour.
"""

import time
from typing import Any

from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.node import without_agent

SHARE, NEIGHBOURS, VICTIMS = "departures", 7, 13
KERNELS_MS = (5, 20, 100, 1000)
"""Lengths of a kernel: from about 10 ms on, an unguarded kill ends the neighbours."""
BATCHES = 4
"""Batches of `VICTIMS` pods for every length of kernel: 208 deletions in all. A rehearsal makes do with one batch."""
UNGUARDED = 4
GRACE_SECONDS = 5
GONE_SECONDS = 60
APART_SECONDS = 0.15
WATCHED_SECONDS = 3.0
"""A neighbour checks every 20 ms; the kubelet reports the end of its pod within a second or two."""


def measure(harness: Harness, findings: Findings) -> None:
    with (
        harness.share(SHARE, per_gpu=NEIGHBOURS + VICTIMS, memory={"default": "4Gi"}) as share,
        harness.namespace() as tenant,
    ):
        share.wait_capacity(NEIGHBOURS + VICTIMS)
        _guarded(tenant, findings)
        tenant.delete_pods()
        share.wait_ready()
        findings.figures["unguarded"] = [_unguarded(harness, tenant, kernel_ms) for kernel_ms in KERNELS_MS]


def _guarded(tenant: Tenant, findings: Findings) -> None:
    batches = 1 if findings.simulated else BATCHES
    names = tenant.neighbours(SHARE, NEIGHBOURS)
    findings.figures["guarded"] = guarded = list[dict[str, Any]]()
    for kernel_ms in KERNELS_MS:
        took, told = list[float](), 0
        for batch in range(batches):
            victims = start_victims(tenant, f"victim-{kernel_ms}-{batch}", kernel_ms, VICTIMS)
            took += delete_in_turn(tenant, victims)
            told += sum(parts.ended_in_order(tenant, name) for name in victims)
            tenant.go_on(names)
        figure = {"kernel_ms": kernel_ms, "deletions": batches * VICTIMS, "ended_in_order": told}
        guarded.append(
            figure | {"hurt": NEIGHBOURS - len(parts.alive(tenant, names)), "seconds_until_gone": parts.spread(took)}
        )
    findings.figures["checks"] = sum(tenant.checks(name) for name in names)
    findings.expect("no guarded deletion hurts a neighbour", not any(row["hurt"] for row in guarded))
    in_order = all(row["ended_in_order"] == row["deletions"] for row in guarded)
    findings.expect("each client is ended through the daemon", in_order)
    wrong = [line for name in names for line in tenant.log(name) if line["event"] in ("wrong", "gpu-error")]
    findings.expect("no result of a neighbour is wrong", not wrong)


def start_victims(tenant: Tenant, prefix: str, kernel_ms: int, count: int) -> list[str]:
    names = [f"{prefix}-{number}" for number in range(count)]
    options = ("--role", "victim", "--kernel-ms", str(kernel_ms))
    tenant.start(*(tenant.pod(name, SHARE, "depart", *options, grace=GRACE_SECONDS) for name in names))
    for name in names:
        tenant.wait_event(name, "started")
    time.sleep(2.5 * kernel_ms / 1000)
    return names


def delete_in_turn(tenant: Tenant, names: list[str]) -> list[float]:
    """Deletes pods one after the other, without waiting. Returns the seconds until each was gone."""
    began = {}
    for name in names:
        began[name] = time.monotonic()
        tenant.kubectl.delete("pod", name, wait=False)
        time.sleep(APART_SECONDS)
    took: dict[str, float] = {}

    def all_gone() -> bool:
        there = {pod["metadata"]["name"] for pod in tenant.pods()}
        took.update({name: time.monotonic() - began[name] for name in names if name not in there | took.keys()})
        return len(took) == len(names)

    wait_until(f"{names[0]} and others are gone", all_gone, GONE_SECONDS)
    return list(took.values())


def _unguarded(harness: Harness, tenant: Tenant, kernel_ms: int) -> dict[str, Any]:
    """Deletes clients that no agent terminates in order, so that the kubelet kills them in mid-kernel."""
    names = tenant.neighbours(SHARE, NEIGHBOURS, f"beside-{kernel_ms}")
    victims, deleted = start_victims(tenant, f"unguarded-{kernel_ms}", kernel_ms, UNGUARDED), 0
    with without_agent(harness):
        while deleted < len(victims) and len(parts.alive(tenant, names)) == NEIGHBOURS:
            delete_in_turn(tenant, [victims[deleted]])
            deleted += 1
            time.sleep(WATCHED_SECONDS)
        hurt, codes = NEIGHBOURS - len(parts.alive(tenant, names)), parts.errors(tenant, names)
    tenant.delete_pods()
    return {"kernel_ms": kernel_ms, "deletions": deleted, "hurt": hurt, "codes": codes}
