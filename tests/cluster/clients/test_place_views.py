"""Pods that wait for a place on a GPU, as users and administrators see them, and what goes on beside: a change of
limits, a roll-out of MPS pods, the end of an idle client that keeps its place.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.stack import install
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import processes_of_pod, signal_in_node
from tests.cluster.rights.test_attach_gaps import broker_of
from tests.cluster.shares.test_changes import change_cpu_limit, restarts, uid, wait_condition
from tests.cluster.tools.test_kubectl import ask, plugin, why
from tests.cluster.tools.test_metrics import Scraped

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


def places(harness: Harness, share: Share) -> dict[str, Any]:
    listed = harness.gpu_node()["status"].get("places") or []
    return next((item for item in listed if item["share"] == share.name), {})


def notes(tenant: Tenant, name: str, reason: str) -> list[str]:
    return [event["message"] for event in tenant.kubernetes_events(name) if event["reason"] == reason]


def test_who_waits_is_told_and_an_idle_holder_gives_way(harness: Harness) -> None:
    clients = CLIENTS | {"queue": {"slots": 3, "idleAfter": "2m"}}
    with harness.share("desks", clients=clients, gpus={"perNode": 1}) as share, harness.namespace() as tenant:
        share.wait_capacity(4)
        start(tenant, share, "first")
        assert tenant.wait_event("first", "computes")["mps"]
        for name in ("second", "third"):
            start(tenant, share, name)
            wait_until(
                f"{name} waits", lambda name=name: f"{tenant.name}/{name}/app" in places(harness, share)["queue"]
            )

        told = wait_until("second's event", lambda: notes(tenant, "second", "WaitsForPlace"), 30)
        assert "at position 1 of" in told[0]
        assert f"1 place, held by pod {tenant.name}/first." in told[0]
        now = places(harness, share)
        assert (now["limit"], now["used"], now["waiting"]) == (1, 1, 2)
        assert (now["held"], now["queue"]) == (
            [f"{tenant.name}/first/app"],
            [f"{tenant.name}/second/app", f"{tenant.name}/third/app"],
        )
        wait_until("the share counts them", lambda: share.get()["status"].get("places", {}).get("waiting") == 2, 30)
        agent = Scraped(harness, "agent")
        figures = [agent.value(f"gpushare_gpu_places{end}", share="desks") for end in ("", "_used", "_waiting")]
        assert figures == [1, 1, 2]
        answer = why(harness, tenant, "third", "waits for a place")
        assert "at position 2 of 2: 1 of 1 place is taken" in answer["sentence"]
        assert ask(harness, "top", "-A", code=0)["places"][0]["waiting"] == 2
        assert "1 used of 1, 2 wait" in plugin(harness, "describe", "share", "desks").stdout

        share.apply(clients=clients | {"threads": {"default": 20, "max": 40}}, gpus={"perNode": 1})
        wait_until("the new limits are in force", lambda: limits(harness, share) == 40, 30)
        assert (restarts(tenant), places(harness, share)["waiting"]) == ({0}, 2)

        assert tenant.wait_event("second", "computes", 200)["mps"]
        assert "are ended in" in notes(tenant, "first", "IdleNotice")[0]
        (ended,) = notes(tenant, "first", "ClientTerminated")
        assert "clients.queue.idleAfter" in ended
        assert "2 other containers wait for a place" in ended
        assert places_waiting(harness, share, tenant) == ["third"]


def limits(harness: Harness, share: Share) -> int:
    """The thread limit that is in force on the share's GPU."""
    daemons = (item for item in harness.gpu_node()["status"]["daemons"] if item["share"] == share.name)
    return next((item["currentLimits"]["threads"] for item in daemons if item["ready"]), 0)


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
