"""The kubelet's PodResources API: which devices exist and which containers hold them.

A connection is kept as long as it brings answers, since gRPC's threads wake for each new one. After a failure the next
question has a new one: the kubelet makes a new socket whenever it starts, and a kept connection that could not be made
would wait for gRPC's back-off first.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from gpushare.agent.kubelet.holdings import HeldDevice
from gpushare.agent.kubelet.sockets import OWN_CONNECTION
from gpushare.agent.proto import podresources_v1_pb2 as messages
from gpushare.agent.proto import podresources_v1_pb2_grpc as services

SECONDS = 5.0
MAX_ANSWER_BYTES = 48 * 1024 * 1024
"""The answer names every container of the node. 110 pods of as many containers as the API server takes, some 4,600 with
the longest names, have 32 MiB, which take 130 MiB here. With a lower bound a few tenants could keep us from reading who
holds what; gRPC's default is 4 MiB.
"""
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), *OWN_CONNECTION]


class PodResourcesError(Exception):
    """The kubelet gave no answer that can be read. The text names the socket, the question and the reason."""


def connect(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix://{socket}", options=CHANNEL_OPTIONS)


class PodResources:
    """The kubelet's PodResources service, such as /var/lib/kubelet/pod-resources/kubelet.sock."""

    def __init__(
        self, socket: Path, seconds: float = SECONDS, connect: Callable[[Path], grpc.aio.Channel] = connect
    ) -> None:
        """`seconds` bounds each question."""
        self._socket = socket
        self._seconds = seconds
        self._connect = connect
        self._kept: grpc.aio.Channel | None = None

    async def held(self) -> list[HeldDevice]:
        """Devices of every resource held by containers of this node. PodResourcesError: no answer."""
        answer = await self._ask(
            "List", lambda stub, limit: stub.List(messages.ListPodResourcesRequest(), timeout=limit)
        )
        return [
            HeldDevice(pod.namespace, pod.name, container.name, devices.resource_name, device_id)
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device_id in devices.device_ids
        ]

    async def allocatable(self) -> set[tuple[str, str]]:
        """(resource, device id) of every healthy device that the kubelet knows. PodResourcesError: no answer."""
        request = messages.AllocatableResourcesRequest()
        answer = await self._ask(
            "GetAllocatableResources", lambda stub, limit: stub.GetAllocatableResources(request, timeout=limit)
        )
        return {(devices.resource_name, device_id) for devices in answer.devices for device_id in devices.device_ids}

    async def _ask(self, question: str, call: Callable[[Any, float], Awaitable[Any]]) -> Any:
        channel, self._kept = self._kept, None
        if channel is None:
            channel = self._connect(self._socket)
        try:
            answer = await call(services.PodResourcesListerStub(channel), self._seconds)
            if answer is None:  # what gRPC makes of bytes that are no such message
                raise PodResourcesError(f"{question} at {self._socket} failed: the answer cannot be read")
            if self._kept is None:  # another question may be under way, with a connection of its own
                self._kept = channel
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise PodResourcesError(f"{question} at {self._socket} failed: {reason}") from error
        finally:
            if self._kept is not channel:
                await channel.close()
        return answer
