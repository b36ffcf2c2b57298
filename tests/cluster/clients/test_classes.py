"""A protected and a best-effort client on one GPU: what each does there is seen, and who takes no class is ended, but
not one whose container has no library for that.

The driver's libraries are stand-ins of tests/native, in which a kernel lasts as many microseconds as its grid is wide.
"""

import json
from typing import Any

import pytest

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.tools.test_metrics import Scraped

CLIENT = """
import ctypes, json, os, sys, time
from gpushare.simulation.client import SimulatedContext
what = sys.argv[1]
if what == "older":
    print(json.dumps({"event": "waits"}), flush=True)
    while not os.path.exists("/tmp/classes"):
        time.sleep(0.2)
context = SimulatedContext.create()
print(json.dumps({"event": "started", "class": os.environ.get("GPUSHARE_CLASS")}), flush=True)
for checks in range(3600 if what in ("older", "silent") else 0):
    context.launch(100)
    context.synchronize()
    print(json.dumps({"event": "progress", "checks": checks + 1}), flush=True)
    time.sleep(1)
cuda, count, null = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint, ctypes.c_void_p()
def kernel(microseconds):
    grid = [count(number) for number in (microseconds, 1, 1, 1, 1, 1, 0)]
    return cuda.cuLaunchKernel(ctypes.c_void_p(1), *grid, null, null, null) or cuda.cuStreamSynchronize(null)
failed = cuda.cuInit(0) or kernel(1000)
print(json.dumps({"event": "launched", "failed": failed}), flush=True)
while not failed:
    failed = kernel(5000)
    time.sleep(0.005 if what == "serve" else 0)
"""
"""It attaches by the simulated GPU, and launches before the stand-in, which attaches nowhere: by one process both."""


def client(tenant: Tenant, name: str, client_class: str, **spec: Any) -> Object:
    command = ["python", "-c", CLIENT, name]
    pod = tenant.pod(name, "classes", command=command, annotations={"gpushare.dev/class": client_class})
    pod["spec"] |= spec
    return pod


@pytest.mark.usefixtures("driver")
def test_what_each_class_does_is_seen_and_who_takes_none_is_ended(harness: Harness) -> None:
    """But `older`, which was granted a class, and whose container started while the share had none and showed grants:
    it has the other front of the same library.
    """
    clients: dict[str, Any] = {
        "perGpu": 4,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "4Gi", "reportedTotal": "Grant"},
    }
    with_classes = clients | {"classes": {}}
    spec: dict[str, Any] = {"gpus": {"perNode": 1}, "enforcement": "Terminate"}
    with harness.share("classes", clients=with_classes, **spec) as share, harness.namespace() as tenant:
        tenant.start(client(tenant, "older", "BestEffort", schedulingGates=[{"name": "example.com/later"}]))
        share.apply(clients=clients, **spec)
        wait_until("the GPU's CDI spec has the other library", lambda: fronts(harness) == [False])
        ungate = [{"op": "remove", "path": "/spec/schedulingGates"}]
        tenant.kubectl("patch", "pod", "older", "--type=json", "--patch", json.dumps(ungate))
        tenant.wait_event("older", "waits")
        share.apply(clients=with_classes, **spec)
        wait_until("it has that of classes", lambda: fronts(harness) == [True])
        tenant.kubectl("exec", "older", "--", "touch", "/tmp/classes")
        tenant.wait_event("older", "progress")
        tenant.start(client(tenant, "silent", "BestEffort"))
        tenant.start(client(tenant, "serve", "Protected"))
        tenant.start(client(tenant, "train", "BestEffort"))
        for name, client_class in (("serve", "Protected"), ("train", "BestEffort")):
            assert tenant.wait_event(name, "started")["class"] == client_class
            assert tenant.wait_event(name, "launched")["failed"] == 0

        def of(name: str, client_class: str) -> dict[str, str]:
            return {
                "namespace": tenant.name,
                "pod": name,
                "container": "app",
                "share": "classes",
                "class": client_class,
            }

        def seen() -> Scraped | None:
            agent = Scraped(harness, "agent")
            served = agent.value("gpushare_container_launches_total", **of("serve", "Protected"))
            gave_way = agent.value(
                "gpushare_container_gave_way_seconds_total", pod="train", protected=f"{tenant.name}/serve"
            )
            return agent if served > 100 and gave_way > 0 else None

        agent = wait_until("best effort is told to have given way to the service", seen, 60)
        for of_client in (of("serve", "Protected"), of("train", "BestEffort")):
            assert agent.value("gpushare_container_active_seconds_total", **of_client) > 0
            assert 0 <= agent.value("gpushare_container_last_launch_seconds", **of_client) < 30
        assert agent.values("gpushare_container_launches_total", pod="silent") == []

        wait_until("who takes no class is told", lambda: of_event(tenant, "ClassNotTaken") == {"older", "silent"}, 90)
        wait_until("who could is ended", lambda: "silent" in of_event(tenant, "ClientTerminated"), 30)
        tenant.go_on(["older"])
        assert of_event(tenant, "ClientTerminated") == {"silent"}

        before = agent.value("gpushare_container_launches_total", **of("train", "BestEffort"))
        harness.restart_pods("agent")
        harness.wait_component("agent")
        wait_until("an agent that starts anew counts on", lambda: counts_on(harness, of("train", "BestEffort")), 60)
        assert before > 0


def fronts(harness: Harness) -> list[bool]:
    """For each GPU that takes clients, whether they get the front library of classes; else that of grants."""
    specs = [path.read_text() for path in harness.in_node("/var/run/cdi").glob("gpushare.dev-gpu-*.json")]
    return ["libcuda-classes" in spec for spec in specs if "gpushare-libcuda" in spec]


def of_event(tenant: Tenant, reason: str) -> set[str]:
    """The pods that have it."""
    events = tenant.kubectl.items("events", "--field-selector", f"reason={reason}")
    return {event["involvedObject"]["name"] for event in events}


def counts_on(harness: Harness, labels: dict[str, str]) -> bool:
    return Scraped(harness, "agent").value("gpushare_container_launches_total", **labels) > 0
