"""What goes on beside containers that hold slots and only wait for places: a roll-out of MPS pods."""

from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.stack import install
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import processes_of_pod, signal_in_node
from tests.cluster.rights.test_attach_gaps import broker_of
from tests.cluster.shares.test_changes import change_cpu_limit, restarts, uid, wait_condition

CLIENT = """
import json, signal, sys, time
from gpushare.simulation.client import SimulatedContext, initialize
begun = []
signal.signal(signal.SIGUSR1, lambda *_: begun.append(True))
def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)
initialize()
tell("initialized")
while sys.argv[1] == "notebook" and not begun:
    time.sleep(0.1)
context = SimulatedContext.create()
context.launch(1)
context.synchronize()
tell("computes", mps=context.under_mps)
while True:
    time.sleep(1)
"""
"""It launches once, and keeps its context; `notebook` makes one only after SIGUSR1."""
CLIENTS: dict[str, Any] = {
    "perGpu": 1,
    "queue": {"slots": 3},
    "memory": {"default": "4Gi"},
    "threads": {"default": 25, "max": 50},
}


@pytest.fixture(scope="module", autouse=True)
def _as_installed(harness: Harness) -> Iterator[None]:
    yield
    install(harness.stack)


def start(tenant: Tenant, share: Share, name: str, what: str = "program") -> None:
    """Returns once its `cuInit` is through, which needs no place."""
    tenant.start(tenant.pod(name, share.name, command=["python3", "-c", CLIENT, what]))
    tenant.wait_event(name, "initialized")


def use(harness: Harness, tenant: Tenant, name: str) -> None:
    """A notebook's user runs a cell."""
    (pid,) = processes_of_pod(harness, tenant.kubectl.get("pod", name)["metadata"]["uid"], b"python3")
    signal_in_node(harness, pid, "USR1")


def places_waiting(harness: Harness, share: Share, tenant: Tenant) -> list[str]:
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in tenant.pods()}
    return [names[item["podUid"]] for item in broker_of(harness, share)["queue"]]


def test_an_mps_pod_is_replaced_though_containers_hold_slots(harness: Harness) -> None:
    with harness.share("seats", clients=CLIENTS, gpus={"perNode": 1}) as share, harness.namespace() as tenant:
        share.wait_capacity(4)
        start(tenant, share, "holder")
        tenant.wait_event("holder", "computes")
        for name in ("one", "two"):
            start(tenant, share, name, "notebook")
        before = uid(harness, share)
        change_cpu_limit(harness, share)
        told = wait_condition(share, "WaitingForClients")["message"]
        assert "for 1 pod to end (GpuNode.status.places names it)" in told
        use(harness, tenant, "one")
        wait_until("one waits", lambda: places_waiting(harness, share, tenant) == ["one"])
        tenant.delete_pods("one")
        assert uid(harness, share) == before

        tenant.delete_pods("holder")
        wait_until("a new MPS pod", lambda: uid(harness, share) not in ("", before), 90, lambda: share.get())
        wait_condition(share, "DaemonsCurrent")
        share.wait_ready()
        assert restarts(tenant) == {0}
        assert [pod["metadata"]["name"] for pod in tenant.running()] == ["two"]
        assert "Prohibited" not in harness.compute_modes()
        use(harness, tenant, "two")
        assert tenant.wait_event("two", "computes")["mps"], "past MPS no limit would bind it"
