"""The GPU that each pod is on, by the kubelet's own record, and how even that is.

The kubelet tells (PodResources) which devices it has given to each container, or which device of its claim. Every way
to share a GPU names the GPU's UUID there.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpushare.agent.podresources.client import SECONDS, connect
from gpushare.agent.proto import podresources_v1_grpc as services
from gpushare.agent.proto import podresources_v1_pb2 as messages
from gpushare.agent.rpc.client import ask
from tests.cluster.harness import Harness

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Reading = Mapping[str, str]
"""The GPU of each pod that has one, by the pod's name."""


@dataclass(frozen=True)
class Evenness:
    """The evenness of several readings. `largest_difference`: between the GPU with most pods and that with fewest, in
    one reading.

    `overpacked`: GPUs that had more pods than places in some reading.
    """

    readings: int
    largest_difference: int
    most_on_a_gpu: int
    overpacked: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def read(harness: Harness, namespace: str) -> Reading:
    """Raises RpcError if the kubelet does not answer, and ValueError if a pod has devices of several GPUs."""
    answer = asyncio.run(_listed(harness))
    return {
        pod.name: gpu for pod in answer.pod_resources if pod.namespace == namespace and (gpu := gpu_of(_names(pod)))
    }


def gpu_of(devices: Iterable[str]) -> str | None:
    """The GPU's UUID in lower case; None where no device is one of a GPU. ValueError: there are several GPUs."""
    uuids = {match[0] for name in devices if (match := _UUID.search(name.lower()))}
    if len(uuids) > 1:
        raise ValueError(f"a pod with one client has devices of {len(uuids)} GPUs: {', '.join(sorted(uuids))}")
    return uuids.pop() if uuids else None


def pods_by_gpu(reading: Reading, gpus: int) -> list[int]:
    """How many pods each GPU has, most first. GPUs that no pod is on count: there are `gpus` in all."""
    counted = sorted(Counter(reading.values()).values(), reverse=True)
    return counted + [0] * (gpus - len(counted))


def evenness(readings: Sequence[Reading], gpus: int, places: int) -> Evenness:
    """`places`: on each GPU. There is at least one reading."""
    counts = [pods_by_gpu(reading, gpus) for reading in readings]
    most = Counter[str]()
    for reading in readings:
        most |= Counter(reading.values())
    return Evenness(
        readings=len(readings),
        largest_difference=max(count[0] - count[-1] for count in counts),
        most_on_a_gpu=max(count[0] for count in counts),
        overpacked=sum(pods > places for pods in most.values()),
    )


async def _listed(harness: Harness) -> Any:
    channel = connect(harness.in_node(SOCKET))
    try:
        return await ask(services.PodResourcesListerStub(channel).List, messages.ListPodResourcesRequest(), SECONDS)
    finally:
        channel.close()


def _names(pod: Any) -> list[str]:
    """Names of a pod's devices: device ids, and the devices of claims."""
    given = [name for container in pod.containers for devices in container.devices for name in devices.device_ids]
    claimed = [
        resource.device_name
        for container in pod.containers
        for claim in container.dynamic_resources
        for resource in claim.claim_resources
    ]
    return given + claimed
