"""One of two webhook replicas is killed while slot pods are created: how many creations are refused?

    python -m measurements.scale.webhook.kill --out measurements/results/scale/webhook-kill.json

A cluster of its own, with the chart as it comes: two replicas behind a Service, and failurePolicy Fail. 30 slot pods a
second are created for 30 s, whatever the answers are. After 10 s one replica's process gets SIGKILL, through the node.
Rounds begin with two new replicas, and take the first and the second one in turns. No scheduler takes the pods: what is
measured is their creation.

`refused` counts pods that were refused at the first try. A refusal by a webhook that did not answer is an
InternalError: a client that retries asks again 0.2 s later, then 0.4, 0.8 … s, as controllers do. `failed` counts the
pods that it did not get either. Times are seconds since the kill. `unlisted`: the Service lists the replica no more.
Since Kubernetes 1.37 an API server takes a replica at random for each question (WebhookRoundTripLoadBalancing). About a
slot pod it asks twice, so until the Service lists the replica no more, three of four are refused.
"""

import argparse
import asyncio
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.kube.client import API_ERRORS, PODS, Kube, KubeError, Object, Resource, connect
from localcluster.cluster import cluster
from localcluster.stack import NAMESPACE, embedded, install, prepare_namespace
from measurements.scale import results
from measurements.scale.webhook import bursts
from tests.cluster.harness import Harness, client_pod, wait_until
from tests.cluster.node import kill_if_there, processes_of_pod

CLUSTER = "webhook-kill"
SHARE = "inference"
WEBHOOKS = "--selector=app.kubernetes.io/component=webhook"
SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
RATE, SECONDS, KILL_AFTER = 30, 30, 10
FIRST_WAIT, RETRIES = 0.2, 6
LOOK_SECONDS = 0.1
SETTLE_SECONDS = 10


@dataclass
class Creation:
    """`asked`: at which second the first try began, and `took`: how many it was until the last one was answered."""

    asked: float
    took: float = 0.0
    refusals: tuple[str, ...] = ()
    created: bool = False


async def create(kube: Kube, body: Object, creations: list[Creation]) -> None:
    began = time.monotonic()
    creation = Creation(began)
    creations.append(creation)
    for retry in range(RETRIES + 1):
        try:
            await kube.create(PODS, body, body["metadata"]["namespace"])
            creation.created = True
            break
        except API_ERRORS as error:
            creation.refusals += (bursts.why(error),)
            if not (isinstance(error, KubeError) and error.reason == "InternalError"):
                break
        await asyncio.sleep(FIRST_WAIT * 2**retry)
    creation.took = time.monotonic() - began


class Endpoint:
    """When the Service ceased to list a replica, and when it listed it again."""

    def __init__(self, kube: Kube, address: str) -> None:
        self._kube = kube
        self._address = address
        self.unlisted: float | None = None
        self.listed_again: float | None = None

    async def run(self) -> None:
        while self.listed_again is None:
            await asyncio.sleep(LOOK_SECONDS)
            selector = "kubernetes.io/service-name=gpushare-webhook"
            slices = (await self._kube.list_all(SLICES, NAMESPACE, labelSelector=selector))["items"]
            ready = any(
                self._address in endpoint["addresses"] and endpoint["conditions"].get("ready")
                for item in slices
                for endpoint in item.get("endpoints") or ()
            )
            if not ready:
                self.unlisted = self.unlisted or time.monotonic()
            elif self.unlisted is not None:
                self.listed_again = time.monotonic()


async def creations(harness: Harness, namespace: str, victim: Object) -> Object:
    (pid,) = processes_of_pod(harness, victim["metadata"]["uid"], b"webhook")
    kube = await connect("gpushare-scale", harness.layout.kubeconfig)
    endpoint = Endpoint(kube, victim["status"]["podIP"])
    watching = asyncio.create_task(endpoint.run())
    made: list[Creation] = []
    ticks, began, killed = results.processor_ticks(), time.monotonic(), 0.0
    try:
        async with asyncio.TaskGroup() as tasks:

            async def kill() -> None:
                nonlocal killed
                await asyncio.sleep(KILL_AFTER)
                await asyncio.to_thread(kill_if_there, harness, pid)
                killed = time.monotonic()

            tasks.create_task(kill())
            for number in range(RATE * SECONDS):
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                body = client_pod(f"app-{number}", namespace, harness.stack.workload_image, SHARE, ("depart",))
                body["spec"]["schedulerName"] = "nobody"
                tasks.create_task(create(kube, body, made))
        idle = results.idle_percent(ticks)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await kube.close()
    refused = [creation for creation in made if creation.refusals]
    retried = [creation for creation in refused if creation.created]
    moments = [creation.asked - killed for creation in refused]
    return {
        "creations": len(made),
        "refused": len(refused),
        "refusals": Counter(creation.refusals[0] for creation in refused),
        "refusedFrom": round(min(moments), 2) if moments else None,
        "refusedTo": round(max(moments), 2) if moments else None,
        "failed": sum(not creation.created for creation in made),
        "mostRetries": max((len(creation.refusals) for creation in retried), default=0),
        "longestWithRetries": round(max((creation.took for creation in retried), default=0.0), 2),
        "unlisted": endpoint.unlisted and round(endpoint.unlisted - killed, 2),
        "listedAgain": endpoint.listed_again and round(endpoint.listed_again - killed, 2),
        "idlePercent": idle,
        "load": results.load(),
    }


def a_round(harness: Harness, number: int) -> Object:
    harness.restart_pods("webhook")
    harness.wait_component("webhook")
    namespace = f"shop-{uuid.uuid4().hex[:6]}"
    prepare_namespace(harness.kubectl, namespace, "restricted")
    wait_until(
        "the ServiceAccount", lambda: harness.kubectl.within(namespace).find("serviceaccount", "default") is not None
    )
    time.sleep(SETTLE_SECONDS)  # the Service lists the new replicas, and the API server has read of the namespace
    replicas = sorted(harness.system.items("pods", WEBHOOKS), key=lambda pod: str(pod["metadata"]["name"]))
    try:
        return asyncio.run(creations(harness, namespace, replicas[number % len(replicas)]))
    finally:
        harness.kubectl.delete("namespace", namespace, seconds=180)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], metavar="VALUE", help="of the chart, such as a.b=c")
    results.add_out(parser)
    args = parser.parse_args(argv)
    rounds: list[Object] = []
    try:
        harness = Harness(embedded(CLUSTER))
        install(harness.stack, *(f"--set={value}" for value in args.set))
        with harness.share(SHARE):
            for number in range(args.rounds):
                rounds.append(a_round(harness, number))
                print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    finally:
        cluster.down(CLUSTER)
    result = {
        "what": "python -m measurements.scale.webhook.kill; see its documentation",
        "environment": {"cpu": results.processor(), **results.machine()},
        "chart": args.set,
        "creations": sum(turn["creations"] for turn in rounds),
        "refused": sum(turn["refused"] for turn in rounds),
        "failed": sum(turn["failed"] for turn in rounds),
        "rounds": rounds,
    }
    results.write(result, args.out)


if __name__ == "__main__":
    main()
