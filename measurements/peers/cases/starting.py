"""Pods that start: how long it takes, as which users, and what the way's own pods may do and cost."""

import subprocess
import sys
import time
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.kubectl import Object
from measurements.gpu.stack.suites.speed import costs
from measurements.peers.cases import accidents
from measurements.peers.ways.way import CLIENTS, Way, clients
from tests.cluster.harness import Harness

ALONE = 3
USERS = 4
FIRST_USER = 2000
ALL_STARTED_SECONDS = 25
"""Ten times what a pod needs that nothing keeps from the GPU."""
IDLE_SECONDS = 12
"""The kubelet's figures of CPU are rates over its last ten seconds or so."""


def starts(harness: Harness, way: Way) -> dict[str, Any]:
    """Seconds from the request to create eight pods at once until each has run a kernel.

    Then what it costs while the eight wait: CPU and memory of the way's own containers, and the GPU's memory.
    """
    with clients(harness, way) as tenant:
        before = gpu_memory(harness)
        took = costs.starts(tenant, "together", CLIENTS, together=True)
        if harness.kubectl.within(way.namespace).items("pods"):
            time.sleep(IDLE_SECONDS)
        return {
            "eight_at_once_seconds": took,
            "gpu_memory_mib": {"before": before, "with_eight_clients": gpu_memory(harness)},
            "parts_with_eight_clients": costs.usage(harness, way.namespace),
        }


def starts_alone(harness: Harness, way: Way) -> dict[str, Any]:
    """Seconds from the request to create a pod until it has run a kernel, one after the other."""
    with clients(harness, way) as tenant:
        return {"one_by_one_seconds": costs.starts(tenant, "alone", ALONE, together=False)}


def gpu_memory(harness: Harness) -> int | None:
    """MiB of the first GPU that are in use, as nvidia-smi shows them; None where GPUs are simulated."""
    if harness.stack.simulated:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise LocalClusterError(f"nvidia-smi does not say how much memory is in use: {done.stderr or done.stdout}")
    return int(done.stdout)


def users(harness: Harness, way: Way) -> dict[str, Any]:
    """Pods of several UIDs at once: how many of them run a kernel.

    An MPS daemon may serve one user until its last client ends: where not all computed, the way is repaired, and
    `usable_after` says whether pods of the usual user compute then.
    """
    outcome = _users(harness, way)
    if outcome["computed"] == USERS:
        return outcome
    return outcome | {"usable_after": accidents.repair(harness, way)}


def _users(harness: Harness, way: Way) -> dict[str, Any]:
    with clients(harness, way) as tenant:
        names = [f"user-{number}" for number in range(USERS)]
        command = [sys.executable, "-c", costs.FIRST_KERNEL]
        tenant.start(
            *(tenant.pod(name, command=command, user=FIRST_USER + number) for number, name in enumerate(names))
        )
        end = time.monotonic() + ALL_STARTED_SECONDS
        while time.monotonic() < end:
            computed = [name for name in names if tenant.events_of(name, "computed")]
            if len(computed) == USERS:
                break
            time.sleep(0.5)
        return {"uids": USERS, "computed": len(computed), "within_seconds": ALL_STARTED_SECONDS}


def privileges(harness: Harness, way: Way) -> dict[str, Any]:
    """What the containers of the way's own pods may do, as their specifications say."""
    with clients(harness, way) as tenant:
        way.hold(tenant)
        pods = harness.kubectl.within(way.namespace).items("pods")
    return {
        "offered": way.offered(),
        "expected": CLIENTS,
        "clients_meet": way.standard,
        "containers": {
            f"{_stem(pod)}/{container['name']}": _rights(pod, container)
            for pod in pods
            for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
        },
    }


def _stem(pod: Object) -> str:
    """The pod's name without what its controller has made up."""
    owner = pod["metadata"]["ownerReferences"][0]
    name = str(owner["name"])
    return name.rpartition("-")[0] if owner["kind"] == "ReplicaSet" else name


def _rights(pod: Object, container: Object) -> dict[str, Any]:
    spec, context = pod["spec"], container.get("securityContext", {})
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec.get("volumes", []) if "hostPath" in volume}
    mounted = [volume for volume in container.get("volumeMounts", []) if volume["name"] in paths]
    return {
        "privileged": bool(context.get("privileged")),
        "added_capabilities": context.get("capabilities", {}).get("add", []),
        "all_dropped": "ALL" in context.get("capabilities", {}).get("drop", []),
        "user": context.get("runAsUser", spec.get("securityContext", {}).get("runAsUser")),
        "read_only_root": bool(context.get("readOnlyRootFilesystem")),
        "host_pid": bool(spec.get("hostPID")),
        "host_network": bool(spec.get("hostNetwork")),
        "host_paths_writable": sorted({paths[volume["name"]] for volume in mounted if not volume.get("readOnly")}),
        "api_token": spec.get("automountServiceAccountToken", True),
    }
