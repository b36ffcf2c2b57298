"""Writes what this tree's operator, agent and MPS pods write, as samples for the tests of the next release.

    PYTHONPATH=operator:. python tests/unit/skew/write_samples.py DIRECTORY

They come from the agent and the operator of the unit tests, with one share by slots and one by claims, a client above
its grant that was ended, a claim that is prepared, and a broker that let one process in and refused another.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gpushare.agent.dra.prepared import PreparedClaim, PreparedClaims, PreparedPart
from gpushare.api.crd import definitions
from gpushare.controller.metrics import OperatorMeters
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.grant.model import Grant
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES, PODS, Object
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import Arrival, AttachRefusal, BrokerState, RefusedAttach
from tests.unit.agent.conftest import FakeNvml
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import container, pod
from tests.unit.controller.listing import once, relist

CLAIM = PreparedClaim(
    "11111111-2222-3333-4444-555555555555",
    "team",
    "part",
    (PreparedPart("GPU-1", "gpu", "n", "gpu-1", "share-id", Grant("parts", 10, 2048, 1)),),
)
SIZES = [{"name": "small", "threads": 10, "memory": "2Gi"}]
SECONDS = 30.0


def share(name: str, **spec: Any) -> Object:
    clients = {"perGpu": 4, "threads": {"default": 25, "max": 50}, "memory": {"default": "8Gi"}}
    return {
        "apiVersion": "gpushare.dev/v1alpha1",
        "kind": "GpuShare",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"clients": clients, "gpus": {"perNode": 1}, **spec},
    }


def without_words(schema: Any) -> Any:
    """A definition without its descriptions, which are most of it."""
    if isinstance(schema, dict):
        return {key: without_words(value) for key, value in schema.items() if key != "description"}
    return [without_words(value) for value in schema] if isinstance(schema, list) else schema


@asynccontextmanager
async def node_of(directory: Path) -> AsyncIterator[FakeNode]:
    """A node with both shares; its agent has not started."""
    node = FakeNode(directory, FakeNvml())
    mps = asyncio.create_task(node.mps())
    node.kube.remove(GPU_SHARES, "a")
    node.kube.put(GPU_SHARES, share("a", enforcement="Terminate", maxWait="2h"))
    node.kube.put(GPU_SHARES, share("parts", delivery="ResourceClaim", sizes=SIZES))
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "8"},
        "nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0"},
    }
    node.kube.put(NODES, {"metadata": {"name": "n", "uid": "node-1", "labels": {}}, "status": status})
    PreparedClaims(node.cdi).add(CLAIM)
    yield node
    await node.stop()
    mps.cancel()


async def live(node: FakeNode) -> None:
    """Runs until all that is to be sampled was written."""
    node.start()
    await node.until(lambda: node.status().get("gpus"), SECONDS)
    node.kube.assign({"uuid": "GPU-0", "share": "a"}, {"uuid": "GPU-1", "share": "parts"})
    await node.until(lambda: len(node.kubelet.ids()) == 4, SECONDS)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    above = pod(1, container(), name="pod", namespace="ns")  # whom the kubelet here lists
    node.kube.put(PODS, above)
    node.client(4711, 9000, above)
    directory, now = gpu_dir(node.root, "GPU-0"), boot_clock()
    refusal = AttachRefusal(
        reason=RefusedAttach.NO_GRANT, pod_uid="u", container_id="ab" * 32, message="it holds no part", count=2, at=now
    )
    arrival = Arrival(pid=4711, pod_uid=above["metadata"]["uid"], container="app", at=now)
    told = BrokerState(
        uuid="GPU-0", heartbeat=now, listening=True, attached=1, refused=2, arrivals=[arrival], refusals=[refusal]
    )
    write_model(directory.broker_state, told)
    await node.until(lambda: len([daemon for daemon in node.status()["daemons"] if daemon["ready"]]) == 2, SECONDS)
    await node.until(lambda: node.status().get("holders") and node.status().get("findings"), SECONDS)
    await node.until(lambda: directory.endings.exists() and directory.seen.exists(), SECONDS)
    await node.until(lambda: json.loads(directory.grants.read_text())["pods"], SECONDS)
    kube = node.kube.connection()
    settings = OperatorSettings(namespace="gpushare-system", pod_name="operator-0", image="gpushare:1", simulation=True)
    reconciler = Reconciler(kube, settings, OperatorMeters(CollectorRegistry()), lambda: datetime.now(UTC))
    await relist(kube, reconciler)
    for _ in range(4):  # its finalizer, its daemons, its status
        await once(reconciler)


async def main(target: Path) -> None:
    def write(name: str, value: Any) -> None:
        (target / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")

    with tempfile.TemporaryDirectory() as directory:
        async with node_of(Path(directory)) as node:
            (claim,) = node.cdi.glob("*claim*")
            write("claim-cdi.json", json.loads(claim.read_text()))
            write("claim-cdi.name.json", claim.name)
            await live(node)
            gpu = gpu_dir(node.root, "GPU-0")
            for path in (gpu.wanted, gpu.state, gpu.grants, gpu.endings, gpu.seen, gpu.broker_state):
                write(path.name, json.loads(path.read_text()))
            write("gpunode.json", node.kube.live(GPU_NODES, "n"))
            write("gpushare-slots.json", node.kube.live(GPU_SHARES, "a"))
            write("gpushare-claims.json", node.kube.live(GPU_SHARES, "parts"))
    for definition in definitions():
        write(f"crd-{definition['spec']['names']['plural']}.json", without_words(definition))


if __name__ == "__main__":
    TARGET = Path(sys.argv[1])
    TARGET.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(TARGET))
