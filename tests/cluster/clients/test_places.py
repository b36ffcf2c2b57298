"""More pods than places on one GPU: each starts and looks at the GPU, and computes once a place is its own.

The steps of the first test build on each other: eight containers share two places, one is killed, the broker ends, a
second namespace comes, and a container takes a place that it does not have.
"""

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import processes_of_part, processes_of_pod, signal_in_node
from tests.cluster.rights.test_attach_gaps import broker_of, broker_process
from tests.cluster.shares.test_changes import restarts

pytestmark = pytest.mark.usefixtures("driver")
PLACES, QUEUE = 2, 7
CLIENT = """
import json, signal, socket, sys, time
from gpushare.simulation import place
from gpushare.simulation.client import SimulatedContext, initialize
from gpushare.simulation.paths import pipe_directory
from gpushare.simulation.wire import connect
def tell(event, **more):
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), flush=True)
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
initialize()
tell("initialized")
if sys.argv[1] == "cheat":
    place.wait_for_place = lambda pipe: True
    connect(pipe_directory() + "/control", 60, socket.SOCK_SEQPACKET).close()
context = SimulatedContext.create()
tell("computes", mps=context.under_mps)
end = time.monotonic() + 1
while {"turn": time.monotonic() < end, "holder": not told}.get(sys.argv[1], True):
    context.launch(1)
    context.synchronize()
    time.sleep(0.1)
tell("ends")
context.close()
"""
"""It runs until it is ended, a `holder` until SIGUSR1, a `turn` for a second. `cheat` does without the library, and
looks before its context as `cuInit` does.
"""
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


def queued(harness: Harness, share: Share) -> int:
    return len(broker_of(harness, share)["queue"])


def handed_over(harness: Harness, share: Share) -> int:
    return int(broker_of(harness, share)["waits"]["count"])


@pytest.mark.long
def test_forty_pods_take_turns_on_eight_places(harness: Harness) -> None:
    """Thirty of one namespace came before five each of two others; broker and agent are killed while places change
    hands. Who computes is known by the clients' own clocks, which all of a machine's containers share.
    """
    clients = {"perGpu": 8, "queue": {"slots": 32}, "memory": {"default": "4Gi"}, "threads": {"default": 12}}
    with (
        harness.share("crowd", clients=clients, gpus={"perNode": 1}) as share,
        harness.namespace() as many,
        harness.namespace() as few,
        harness.namespace() as others,
    ):
        share.wait_capacity(40)

        def start(tenant: Tenant, count: int, what: str) -> list[str]:
            names = [f"{what}-{number}" for number in range(count)]
            tenant.start(*(tenant.pod(name, share.name, command=["python3", "-c", CLIENT, what]) for name in names))
            return names

        holders = start(many, 8, "holder")
        for name in holders:
            many.wait_event(name, "computes")
        for tenant, count, waiting in ((many, 22, 22), (few, 5, 27), (others, 5, 32)):
            start(tenant, count, "turn")
            wait_until(f"{waiting} wait", lambda waiting=waiting: queued(harness, share) == waiting, 120)

        for name in holders:
            uid = many.kubectl.get("pod", name)["metadata"]["uid"]
            (pid,) = processes_of_pod(harness, uid, b"python3")
            signal_in_node(harness, pid, "USR1")
        wait_until("ten have got a place", lambda: handed_over(harness, share) >= 18)
        signal_in_node(harness, broker_process(harness, share), "KILL")
        wait_until("twenty have", lambda: handed_over(harness, share) >= 28)
        (agent,) = processes_of_part(harness, "agent")
        signal_in_node(harness, agent, "KILL")

        turns: list[tuple[float, float, Tenant]] = []
        for tenant, count in ((many, 30), (few, 5), (others, 5)):
            pods = tenant.pods()
            assert len(pods) == count
            for name in (pod["metadata"]["name"] for pod in pods):
                assert tenant.wait_ended(name) == "Succeeded"
                (begins,), (ends,) = tenant.events_of(name, "computes"), tenant.events_of(name, "ends")
                assert begins["mps"]
                turns.append((begins["at"], ends["at"], tenant))
            assert restarts(tenant) == {0}

        changes = sorted([(begins, 1) for begins, _, _ in turns] + [(ends, -1) for _, ends, _ in turns])
        assert max(accumulate(change for _, change in changes)) == 8
        order = [tenant for _, _, tenant in sorted(turns, key=lambda turn: turn[0])][len(holders) :]
        for tenant in (few, others):
            assert order.index(tenant) < 8, "in the order in which they came 22 were before it"
        assert set(order[28:]) == {many}
        assert broker_of(harness, share)["restarts"] == 1
        assert queued(harness, share) == 0
