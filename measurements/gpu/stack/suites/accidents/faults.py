"""Accidents, one after the other, beside three clients that check their results: who dies, the events, and the time
until a new client computes. Accidents that are known to hurt nobody are expected to; the others' effects are recorded.
"""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcluster.cluster import processes
from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, signal_in_node

SHARE, NEIGHBOURS, PER_GPU = "faults", 3, 8
SETTLE_SECONDS, SERVE_SECONDS = 4.0, 90
KERNEL_MS = 5000
"""Longer than it takes to fill the container's memory."""
HOST_MEMORY = "2Gi"
CRASH = """
import ctypes, json, sys
from gpushare_workload.backend import open_backend
backend = open_backend("auto")
backend.spin(1)
backend.synchronize()
print(json.dumps({"event": "started"}), flush=True)
backend.spin(float(sys.argv[1]))
if sys.argv[2] == "crash":
    ctypes.string_at(0)
taken = []
while True:
    taken.append(b"x" * (64 << 20))
"""


@dataclass(frozen=True)
class Scene:
    harness: Harness
    share: Share
    tenant: Tenant


@dataclass(frozen=True)
class Accident:
    """`spares`: the other clients are expected to go on."""

    name: str
    happen: Callable[[Scene], None]
    spares: bool = False


def measure(harness: Harness, findings: Findings) -> None:
    findings.figures["accidents"] = accidents = dict[str, Any]()
    with harness.share(SHARE, per_gpu=PER_GPU) as share, harness.namespace() as tenant:
        share.wait_capacity(PER_GPU)
        scene = Scene(harness, share, tenant)
        findings.figures["new_client_without_accident_seconds"] = _serve(scene, "first", time.monotonic(), findings)
        for accident in ACCIDENTS:
            accidents[accident.name] = outcome = _accident(scene, accident, findings)
            if accident.spares:
                findings.expect(f"nobody is hurt: {accident.name}", not outcome["hurt"])
            tenant.delete_pods()


def _accident(scene: Scene, accident: Accident, findings: Findings) -> dict[str, Any]:
    names = scene.tenant.neighbours(SHARE, NEIGHBOURS, f"beside-{accident.name}")
    before, told = daemon_of(scene.harness, scene.share), _told(scene)
    began = time.monotonic()
    accident.happen(scene)
    happened = time.monotonic()
    served = _serve(scene, f"after-{accident.name}", happened, findings)
    time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - happened)))
    alive = parts.alive(scene.tenant, names)
    scene.tenant.go_on(alive)
    after = daemon_of(scene.harness, scene.share)
    return {
        "lasted_seconds": round(happened - began, 2),
        "hurt": NEIGHBOURS - len(alive),
        "codes": parts.errors(scene.tenant, names),
        "daemon_replaced": after["controlPid"] != before["controlPid"],
        "server_replaced": after["serverPid"] != before["serverPid"],
        "told": sorted(_told(scene) - told),
        "new_client_after_seconds": served,
    }


def _serve(scene: Scene, name: str, since: float, findings: Findings) -> float:
    """Seconds until a new pod's client has checked its limits, which must be in force."""
    scene.tenant.start_replaced(scene.tenant.pod(name, SHARE, "limits", "--throughput", "0"), SERVE_SECONDS)
    problems = scene.tenant.wait_event(name, "limits", SERVE_SECONDS)["problems"]
    findings.expect("before and after each accident a new client finds every limit in force", not problems)
    return round(time.monotonic() - since, 2)


def _told(scene: Scene) -> set[str]:
    """Our events about the node and the tenant's pods: reasons and notes."""
    events = scene.harness.kubectl.items("events", "--all-namespaces")
    ours = [event for event in events if event["involvedObject"]["kind"] in ("GpuNode", "Pod") and parts.is_ours(event)]
    return {f"{event['involvedObject']['name']}: {event['reason']}: {event['message']}" for event in ours}


def illegal_access(tenant: Tenant) -> None:
    tenant.start(tenant.pod("culprit", SHARE, "fault", "--role", "faulty", "--after", "0.5"))
    tenant.wait_event("culprit", "faulted")


def _kill(which: str) -> Callable[[Scene], None]:
    def happen(scene: Scene) -> None:
        pid = daemon_of(scene.harness, scene.share)[which]
        signal_in_node(scene.harness, pid, "KILL")

    return happen


def _restart_component(name: str) -> Callable[[Scene], None]:
    def happen(scene: Scene) -> None:
        scene.harness.restart_pods(name, force=True)
        scene.harness.wait_component(name)

    return happen


def _restart_kubelet(scene: Scene) -> None:
    processes.replace(scene.harness.layout, "kubelet", signal.SIGTERM)


def _wedge_server(scene: Scene) -> None:
    """Waits until the server is reported and no more slots are offered."""
    server = daemon_of(scene.harness, scene.share)["serverPid"]
    signal_in_node(scene.harness, server, "STOP")
    try:
        told = "ControlTimeout"
        wait_until(told, lambda: told in scene.share.condition("DaemonsReady").get("message", ""), 60)
    finally:
        signal_in_node(scene.harness, server, "CONT")
    scene.share.wait_ready()


def die(tenant: Tenant, how: str) -> None:
    """A client that ends in mid-kernel without any warning: it crashes (`crash`), or fills its memory (`oom`)."""
    pod = tenant.pod(how, SHARE, command=[sys.executable, "-c", CRASH, str(KERNEL_MS), how])
    if how == "oom":
        _limit_host_memory(pod)
    tenant.start(pod)
    tenant.wait_event(how, "started")
    tenant.wait_ended(how)


def _limit_host_memory(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = HOST_MEMORY


ACCIDENTS = (
    Accident("illegal-access", lambda scene: illegal_access(scene.tenant)),
    Accident("client-crashes", lambda scene: die(scene.tenant, "crash")),
    Accident("client-out-of-memory", lambda scene: die(scene.tenant, "oom")),
    Accident("server-killed", _kill("serverPid")),
    Accident("daemon-killed", _kill("controlPid")),
    Accident("server-wedged", _wedge_server, spares=True),
    Accident("agent-killed", _restart_component("agent"), spares=True),
    Accident("operator-killed", _restart_component("operator"), spares=True),
    Accident("kubelet-restarted", _restart_kubelet, spares=True),
)
