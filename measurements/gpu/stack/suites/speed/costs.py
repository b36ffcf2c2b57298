"""The costs of gpushare: time to a pod's first kernel, the kubelet's calls, observation, the agent's CPU and memory."""

import json
import sys
import time
from typing import Any

from localcluster.kubectl import CommandError
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import NODE, Harness, Tenant

SHARE, PER_GPU, STARTS = "costs", 8, 8
WATCHED_SECONDS = 30
FIRST_KERNEL = """
import json, time
began = time.time()
from gpushare_workload.backend import open_backend
backend = open_backend("auto")
context = time.time()
backend.spin(0.1)
backend.synchronize()
at, seen = time.time(), backend.device()
view = {"sms": seen.sms, "free_mib": seen.free >> 20}
print(json.dumps({"event": "computed", "began": began, "context": context, "at": at, **view}), flush=True)
time.sleep(600)
"""
HISTOGRAMS = (
    "gpushare_allocate_duration_seconds",
    "gpushare_allocation_ready_seconds",
    "gpushare_loop_duration_seconds",
)


def measure(harness: Harness, findings: Findings) -> None:
    with harness.share(SHARE, per_gpu=PER_GPU) as share, harness.namespace() as tenant:
        share.wait_capacity(PER_GPU)
        began = _agent(harness)
        findings.figures["one_by_one"] = starts(tenant, "alone", STARTS, together=False)
        tenant.delete_pods()
        findings.figures["all_at_once"] = starts(tenant, "together", STARTS, together=True)
        allocated = "gpushare_allocate_duration_seconds_count"
        ended = _agent(harness)
        findings.figures["kubelet_calls_and_loops_milliseconds"] = _means(began, ended)
        before, at = _agent(harness), time.monotonic()
        time.sleep(WATCHED_SECONDS)
        after, took = _agent(harness), time.monotonic() - at
        cpu = "process_cpu_seconds_total"
        findings.figures["agent_with_eight_clients"] = {
            "cpu_millicores": round(1000 * (after[cpu] - before[cpu]) / took, 1),
            "resident_mib": round(after["process_resident_memory_bytes"] / 2**20, 1),
        }
        findings.figures["parts_by_the_kubelet"] = usage(harness, "gpushare")
        findings.expect("the kubelet asked once for each pod", ended[allocated] - began[allocated] == 2 * STARTS)


def starts(tenant: Tenant, prefix: str, count: int, together: bool, share: str = SHARE) -> dict[str, Any]:
    """Seconds from the request to create a pod until its program runs, has its context, and has run a kernel."""
    created, names = dict[str, float](), [f"{prefix}-{number}" for number in range(count)]
    pods = {name: tenant.pod(name, share, command=[sys.executable, "-c", FIRST_KERNEL]) for name in names}
    if together:
        created = dict.fromkeys(names, time.time())
        tenant.start(*pods.values())
    for name in names:
        if not together:
            created[name] = time.time()
            tenant.start(pods[name])
        tenant.wait_event(name, "computed", 90)
    seen = {name: tenant.events_of(name, "computed")[0] for name in names}
    return {
        what: parts.spread([seen[name][key] - created[name] for name in names])
        for what, key in (("program_runs", "began"), ("has_context", "context"), ("first_kernel_ended", "at"))
    }


def _agent(harness: Harness) -> dict[str, float]:
    """The agent's metrics, by name and labels as written: the labels need no parser."""
    [pod] = harness.pods_of("agent")
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}:9408/proxy/metrics"
    samples = {}
    for line in harness.kubectl("get", "--raw", path).splitlines():
        name, _, value = line.rpartition(" ")
        if name and not name.startswith("#"):
            samples[name] = float(value)
    return samples


def _means(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Figures of each histogram and each loop: the count, and the mean time between the two readings."""
    means = {}
    for name, total in after.items():
        family, _, labels = name.partition("_sum")
        if not name.startswith(HISTOGRAMS) or "_sum" not in name:
            continue
        count = after[f"{family}_count{labels}"] - before.get(f"{family}_count{labels}", 0)
        if count:
            mean = (total - before.get(name, 0)) / count
            means[family + labels] = {"count": int(count), "mean": round(1000 * mean, 2)}
    return means


def usage(harness: Harness, namespaces: str) -> dict[str, Any]:
    """CPU and memory of each container, from the kubelet. `namespaces`: how their names begin."""
    try:
        summary = json.loads(harness.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
    except CommandError as error:
        return {"error": str(error)}
    return {
        f"{pod['podRef']['name']}/{container['name']}": {
            "cpu_millicores": round(container.get("cpu", {}).get("usageNanoCores", 0) / 1e6, 1),
            "working_set_mib": round(container.get("memory", {}).get("workingSetBytes", 0) / 2**20, 1),
        }
        for pod in summary["pods"]
        if pod["podRef"]["namespace"].startswith(namespaces)
        for container in pod.get("containers", [])
    }
