"""A protected and a best-effort client on one GPU: what each does there is seen, and so is who takes no class.

The driver's libraries are stand-ins of tests/native, in which a kernel lasts as many microseconds as its grid is wide.
"""

import pytest

from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.tools.test_metrics import Scraped

CLIENT = """
import ctypes, json, os, sys, time
from gpushare.simulation.client import SimulatedContext
context, what = SimulatedContext.create(), sys.argv[1]
print(json.dumps({"event": "started", "class": os.environ.get("GPUSHARE_CLASS")}), flush=True)
if what == "silent":
    time.sleep(3600)
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


def start(tenant: Tenant, name: str, client_class: str) -> None:
    command = ["python", "-c", CLIENT, name]
    tenant.start(tenant.pod(name, "classes", command=command, annotations={"gpushare.dev/class": client_class}))


@pytest.mark.usefixtures("driver")
def test_what_each_class_does_is_seen_and_who_takes_none_is_found(harness: Harness) -> None:
    clients = {
        "perGpu": 4,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "4Gi"},
        "classes": {},
    }
    with harness.share("classes", clients=clients, gpus={"perNode": 1}), harness.namespace() as tenant:
        start(tenant, "silent", "BestEffort")
        start(tenant, "serve", "Protected")
        start(tenant, "train", "BestEffort")
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

        wait_until("who took no class is told", lambda: class_not_taken(tenant) == {"silent"}, 90)
        [finding] = harness.gpu_node()["status"]["findings"]
        assert (finding["reason"], finding["pod"]) == ("ClassNotTaken", "silent")

        before = agent.value("gpushare_container_launches_total", **of("train", "BestEffort"))
        harness.restart_pods("agent")
        harness.wait_component("agent")
        wait_until("an agent that starts anew counts on", lambda: counts_on(harness, of("train", "BestEffort")), 60)
        assert before > 0


def class_not_taken(tenant: Tenant) -> set[str]:
    events = tenant.kubectl.items("events", "--field-selector", "reason=ClassNotTaken")
    return {event["involvedObject"]["name"] for event in events}


def counts_on(harness: Harness, labels: dict[str, str]) -> bool:
    return Scraped(harness, "agent").value("gpushare_container_launches_total", **labels) > 0
