"""Whole GPUs on a machine of two: both in one container with NCCL, one beside a shared one, and moves between them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Tenant, gpu_share, wait_until

WHOLE, SHARED, RESOURCE = "training", "notebooks", "nvidia.com/gpu"
PER_GPU = 4
PROGRAM = Path(__file__).with_name("nccl_program.py").read_text()
SECONDS = 120
NEAR = 0.9
"""NCCL in a container gets at least this part of what it gets without one."""


def measure(harness: Harness, findings: Findings) -> None:
    _offer(harness, gpus=2)
    try:
        with findings.phase("both GPUs in one container"):
            findings.figures["both"] = _both(harness, findings)
        _offer(harness, gpus=1)
        with harness.share(SHARED, per_node=1, per_gpu=PER_GPU) as shared, harness.namespace() as tenant:
            shared.wait_capacity(PER_GPU)
            with findings.phase("whole and shared"):
                findings.figures["beside"] = _beside(harness, tenant, findings)
        with findings.phase("from shared to whole"):
            _offer(harness, gpus=2)
            findings.expect("a GPU goes from shared to whole", harness.allocatable(RESOURCE) == 2)
    finally:
        harness.kubectl.delete("gpushare", WHOLE, seconds=90)
    with harness.share(SHARED, per_gpu=PER_GPU) as shared, harness.namespace() as tenant:
        shared.wait_capacity(2 * PER_GPU)
        clients = tenant.neighbours(SHARED, 2)
        tenant.go_on(clients)
        findings.expect("and back, and serves clients", parts.alive(tenant, clients) == clients)


def _offer(harness: Harness, gpus: int) -> None:
    harness.kubectl.apply(gpu_share(WHOLE, {"wholeGpus": {"resourceName": RESOURCE}, "gpus": {"perNode": gpus}}))
    wait_until(f"{gpus} whole GPUs", lambda: harness.allocatable(RESOURCE) == gpus, 60,
               lambda: harness.kubectl.get("gpushare", WHOLE).get("status"))  # fmt: skip


def _with_gpus(pod: Object, count: int) -> Object:
    pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: str(count)}}
    return pod


def _both(harness: Harness, findings: Findings) -> dict[str, Any]:
    """NCCL in a pod with both GPUs, between two runs without a container."""
    if findings.simulated:
        with harness.namespace() as tenant:
            tenant.start(_with_gpus(tenant.pod("both", WHOLE, "pin", "--processes", "2"), 2))
            findings.expect("a container gets both", tenant.wait_ended("both", 90) == "Succeeded")
        return {}
    before = _bare()
    with harness.namespace("ranks", enforce="privileged") as tenant:
        environment = [{"name": name, "value": value} for name, value in parts.of_the_machine().items()]
        environment.append({"name": "PROGRAM", "value": PROGRAM})
        pod = tenant.pod("both", WHOLE, command=[sys.executable, "-c", PROGRAM], env=environment)
        parts.with_the_machines_libraries(pod)
        pod["spec"]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
        tenant.start(_with_gpus(pod, 2))
        inside = tenant.wait_event("both", "trained", SECONDS)
        told = {entry["uuid"] for entry in harness.gpu_node()["status"]["gpus"]}
    after = _bare()
    findings.expect("a container gets both", {entry["gpu"] for entry in inside["ranks"]} == told)
    findings.expect("and sees no others", all(entry["sees"] == 2 for entry in inside["ranks"]))
    findings.expect("without MPS", inside["mps_variables"] == [])
    findings.expect(
        "sums are right", all(entry["all_reduce_right"] and len(entry["sums"]) == 1 for entry in inside["ranks"])
    )
    findings.expect("NCCL takes the same way as without a container", inside["ways"] == before["ways"])
    for figure in ("all_reduce_gb_per_second", "training_steps_per_second"):
        least = min(_least(run, figure) for run in (before, after))
        findings.expect(f"{figure} as without a container", _least(inside, figure) >= NEAR * least)
    return {"bare_before": before, "in_a_pod": inside, "bare_after": after}


def _bare() -> dict[str, Any]:
    environment = {**os.environ, "PROGRAM": PROGRAM, "NCCL_NVLS_ENABLE": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True,
                          timeout=SECONDS, check=True)  # fmt: skip
    run: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return run


def _least(run: dict[str, Any], figure: str) -> float:
    return min(float(rank[figure]) for rank in run["ranks"])


def _beside(harness: Harness, tenant: Tenant, findings: Findings) -> dict[str, Any]:
    clients = tenant.neighbours(SHARED, 2)
    [whole] = (entry["uuid"] for entry in harness.gpu_node()["spec"]["assignments"] if entry["share"] == WHOLE)
    tenant.start(_with_gpus(tenant.pod("alone", WHOLE, "pin", "--processes", "2"), 1))
    ended = tenant.wait_ended("alone", 90)
    seen = {entry["uuid"] for entry in tenant.events_of("alone", "placed")}
    findings.expect("a container with one whole GPU computes on it", ended == "Succeeded" and seen == {whole})
    tenant.go_on(clients)
    findings.expect("clients of the shared one go on", parts.alive(tenant, clients) == clients)
    return {"whole": whole, "seen": sorted(seen), "checks": {name: tenant.checks(name) for name in clients}}
