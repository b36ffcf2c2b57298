"""More pods than places on one GPU: each starts and looks at the GPU, and computes once a place is its own.

The steps build on each other: eight containers share two places, one is killed, the broker ends, a second namespace
comes, and a container takes a place that it does not have.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import signal_in_node
from tests.cluster.rights.test_attach_gaps import broker_of, broker_process

pytestmark = pytest.mark.usefixtures("driver")
PLACES, QUEUE = 2, 7
CLIENT = """
import json, socket, sys, time
from gpushare.simulation import place
from gpushare.simulation.client import SimulatedContext, initialize
from gpushare.simulation.paths import pipe_directory
from gpushare.simulation.wire import connect
def tell(event, **more):
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)
initialize()
tell("initialized")
if sys.argv[1] == "cheat":
    place.wait_for_place = lambda pipe: True
    connect(pipe_directory() + "/control", 60, socket.SOCK_SEQPACKET).close()
context = SimulatedContext.create()
tell("computes", mps=context.under_mps)
while True:
    context.launch(1)
    context.synchronize()
    time.sleep(0.1)
"""
"""It runs until it is ended; `cheat` does without the library, and looks before its context as `cuInit` does."""
TOLD = re.compile(r"waits for a place on the GPU: number (\d+) of (\d+) that wait; all (\d+) places are taken")


CLIENTS = {"perGpu": PLACES, "queue": {"slots": QUEUE}, "memory": {"default": "4Gi"}, "threads": {"default": 50}}


class Journey:
    def __init__(self, harness: Harness, share: Share, tenant: Tenant) -> None:
        self.harness = harness
        self.share = share
        self.tenant = tenant

    def start(self, name: str, tenant: Tenant | None = None, what: str = "honest") -> None:
        """Returns once its `cuInit` is through, which needs no place."""
        tenant = tenant or self.tenant
        tenant.start(tenant.pod(name, self.share.name, command=["python3", "-c", CLIENT, what]))
        tenant.wait_event(name, "initialized")

    def told(self) -> dict[str, Any]:
        return broker_of(self.harness, self.share)

    def names(self, entries: Sequence[dict[str, Any]], *more: Tenant) -> list[str]:
        pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for of in (self.tenant, *more) for pod in of.pods()}
        return [pods.get(entry["podUid"], "") for entry in entries]

    def held(self, *more: Tenant) -> list[str]:
        return sorted(self.names(self.told()["places"]["held"], *more))

    def wait_queue(self, *expected: str, more: Sequence[Tenant] = ()) -> None:
        wait_until(
            f"{expected} wait in this order",
            lambda: self.names(self.told()["queue"], *more) == list(expected),
            explain=lambda: json.dumps(self.told(), indent=1),
        )

    def computing(self) -> set[str]:
        names = [pod["metadata"]["name"] for pod in self.tenant.pods()]
        return {name for name in names if self.tenant.events_of(name, "computes")}

    def kill(self, name: str) -> None:
        """Its process, by SIGKILL, with its context open: as by the kernel for want of memory."""
        uid = self.tenant.kubectl.get("pod", name)["metadata"]["uid"]
        pid = next(arrival["pid"] for arrival in self.told()["arrivals"] if arrival["podUid"] == uid)
        signal_in_node(self.harness, pid, "KILL")


def test_eight_containers_share_two_places_in_their_order(harness: Harness) -> None:
    with (
        harness.share("seats", clients=CLIENTS, gpus={"perNode": 1}) as share,
        harness.namespace() as tenant,
        harness.namespace() as other,
    ):
        journey = Journey(harness, share, tenant)
        waiting = [f"pod-{number}" for number in range(2, 8)]
        for name in ("pod-0", "pod-1"):
            journey.start(name)
            assert tenant.wait_event(name, "computes")["mps"]
        for number, name in enumerate(waiting, 1):
            journey.start(name)
            journey.wait_queue(*waiting[:number])
        assert len(tenant.running()) == 8
        assert journey.computing() == {"pod-0", "pod-1"}
        assert TOLD.findall(tenant.kubectl.logs("pod-2"))[0] == ("1", "1", "2")
        assert TOLD.findall(tenant.kubectl.logs("pod-7"))[0] == ("6", "6", "2")

        journey.kill("pod-0")
        tenant.wait_event("pod-2", "computes")
        journey.wait_queue(*waiting[1:])
        assert tenant.wait_ended("pod-0") == "Failed"

        before, since = broker_process(harness, share), journey.told()["queue"]
        signal_in_node(harness, before, "KILL")
        wait_until("a successor", lambda: broker_process(harness, share) not in (0, before))
        wait_until("it serves", lambda: journey.told()["restarts"] == 1)
        wait_until("all wait again, since they came", lambda: journey.told()["queue"] == since)
        assert journey.held() == ["pod-1", "pod-2"]
        assert journey.computing() == {"pod-0", "pod-1", "pod-2"}

        journey.start("lone", other)
        journey.wait_queue("lone", *waiting[1:], more=[other])
        tenant.delete_pods("pod-1")
        other.wait_event("lone", "computes")
        journey.wait_queue(*waiting[1:])
        other.delete_pods("lone")
        tenant.wait_event("pod-3", "computes")
        assert journey.held(other) == ["pod-2", "pod-3"]
        assert journey.told()["waits"]["count"] == 5

        journey.start("cheat", what="cheat")
        uid = tenant.kubectl.get("pod", "cheat")["metadata"]["uid"]
        wait_until(
            "who computes without a place is told",
            lambda: uid in [item["podUid"] for item in journey.told()["withoutPlace"]] or ended(tenant, "cheat"),
        )
        assert journey.held(other) == ["pod-2", "pod-3"]
        journey.wait_queue(*waiting[2:])
        for name in ("pod-2", "pod-3"):
            assert tenant.kubectl.get("pod", name)["status"]["phase"] == "Running"


def ended(tenant: Tenant, name: str) -> bool:
    """By the agent, which may be told and done before this test looks."""
    selector = f"reason=ComputesWithoutPlace,involvedObject.name={name}"
    return bool(tenant.kubectl.items("events", "--field-selector", selector))
