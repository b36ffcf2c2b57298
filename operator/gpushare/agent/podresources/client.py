"""The kubelet's PodResources API: which devices exist and which containers hold them.

A connection is kept as long as it brings answers. After a failure the next question has a new one, since a kubelet that
hangs may answer on no old one again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare.agent.podresources.holdings import HeldDevice
from gpushare.agent.proto import podresources_v1_grpc as services
from gpushare.agent.proto import podresources_v1_pb2 as messages
from gpushare.agent.rpc.client import RpcChannel, RpcError, ask
from gpushare.api.names import NVIDIA_DRA_DRIVER

SECONDS = 5.0
MAX_ANSWER_BYTES = 48 * 1024 * 1024
"""The answer names every container of the node. 110 pods of as many containers as the API server takes, some 4,600 with
the longest names, have 32 MiB, which take 130 MiB here. With a lower bound a few tenants could keep us from reading who
holds what; gRPC's usual limit is 4 MiB.
"""


class PodResourcesError(Exception):
    """The kubelet gave no answer that can be read. The text names the socket, the question and the reason."""


def connect(socket: Path) -> RpcChannel:
    return RpcChannel(socket, MAX_ANSWER_BYTES)


class PodResources:
    """The kubelet's PodResources service, such as /var/lib/kubelet/pod-resources/kubelet.sock."""

    def __init__(self, socket: Path, seconds: float = SECONDS, connect: Callable[[Path], RpcChannel] = connect) -> None:
        """`seconds` bounds each question."""
        self._socket = socket
        self._seconds = seconds
        self._connect = connect
        self._kept: RpcChannel | None = None

    def close(self) -> None:
        """Nobody asks any more."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def held(self) -> list[HeldDevice]:
        """Devices of every resource held by containers of this node, and those of NVIDIA's DRA driver, which kubelets
        tell from 1.34 on. PodResourcesError: no answer."""
        answer = await self._ask("List", messages.ListPodResourcesRequest())
        containers = [(pod, container) for pod in answer.pod_resources for container in pod.containers]
        by_plugins = [
            HeldDevice(pod.namespace, pod.name, container.name, devices.resource_name, device_id)
            for pod, container in containers
            for devices in container.devices
            for device_id in devices.device_ids
        ]
        by_claims = [
            HeldDevice(pod.namespace, pod.name, container.name, device.driver_name, device.device_name)
            for pod, container in containers
            for claim in container.dynamic_resources
            for device in claim.claim_resources
            if device.driver_name == NVIDIA_DRA_DRIVER
        ]
        return by_plugins + by_claims

    async def allocatable(self) -> set[tuple[str, str]]:
        """(resource, device id) of every healthy device that the kubelet knows. PodResourcesError: no answer."""
        answer = await self._ask("GetAllocatableResources", messages.AllocatableResourcesRequest())
        return {(devices.resource_name, device_id) for devices in answer.devices for device_id in devices.device_ids}

    async def _ask(self, question: str, request: Any) -> Any:
        channel, self._kept = self._kept, None
        if channel is None:
            channel = self._connect(self._socket)
        try:
            answer = await ask(getattr(services.PodResourcesListerStub(channel), question), request, self._seconds)
            if self._kept is None:  # another question may be under way, with a connection of its own
                self._kept = channel
        except RpcError as error:
            raise PodResourcesError(f"{question} at {self._socket} failed: {error}") from error
        finally:
            if self._kept is not channel:
                channel.close()
        return answer
