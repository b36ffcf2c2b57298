"""The device plugin's gRPC service: what the kubelet asks about one resource, as thin answers around `Hooks`.

Guarantees: Allocate never waits, and hands out only what is listed (`listing` says why); an id that it handed out is
promised before the kubelet hears of it; a container for which `Hooks.not_ready` has a sentence does not start here,
which the kubelet tries again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Protocol

import grpc

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import Listing, OfferedDevice, PendingAllocations
from gpushare.agent.kubelet.registration import options
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.proto import deviceplugin_v1beta1_pb2_grpc as services

READY_SECONDS = 20.0
"""How long a container's start may wait here for its GPU; the kubelet gives up after 30 s, and tries again."""
READY_POLL_SECONDS = 0.5


class Hooks(Protocol):
    """What the plugin asks. LookupError, with a sentence for the user, where the ids cannot be had."""

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """Instantly: the kubelet starts no other pod meanwhile."""
        ...

    def allocated(self, device_ids: Sequence[str]) -> None:
        """Told of each container that Allocate is about to give these ids."""
        ...

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        """None: a container with these ids may start; else the sentence that says why not yet."""
        ...


Preferred = Callable[[Sequence[str], Sequence[str], int], list[str]]


class DeviceService(services.DevicePluginServicer):  # type: ignore[misc]
    """Serves one resource. Outlives the server that it is bound to, so a new one goes on with the same offer."""

    def __init__(self, hooks: Hooks, preferred: Preferred, clock: Callable[[], float], turns: AllocationLock) -> None:
        self.watchers = 0
        self.watched_at = clock()
        """When a stream was last seen open, as long as none is."""
        self._hooks = hooks
        self._preferred = preferred
        self._clock = clock
        self._turns = turns
        self._listing = Listing()
        self._devices: list[OfferedDevice] = []
        self._changed = asyncio.Event()
        self._closing = False
        self._promises = PendingAllocations()

    @property
    def devices(self) -> list[OfferedDevice]:
        """As the kubelet is told of them now."""
        return self._devices

    def offer(self, devices: Sequence[OfferedDevice]) -> None:
        """Replaces the offer: what was offered and is not any more is told as unhealthy for a while."""
        self._listing.offer(devices, self._clock())
        self._list()

    def close(self) -> None:
        """Open streams end; the kubelet then calls all devices unhealthy by itself."""
        self._closing = True
        self._tell()

    def promised(self) -> frozenset[str]:
        return self._promises.ids()

    def settle(self, listed: Collection[str], allocatable: Collection[str], started: float) -> None:
        self._promises.settle(listed, started)
        self._listing.settle({*listed, *allocatable, *self._promises.ids()}, started)
        self._list()

    def _list(self) -> None:
        devices = self._listing.devices()
        if devices != self._devices:
            self._devices = devices
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.watchers += 1
        try:
            while True:
                changed = self._changed
                if self._closing:
                    return
                yield messages.ListAndWatchResponse(devices=[_device(item) for item in self._devices])
                await changed.wait()
        finally:
            self.watchers -= 1
            self.watched_at = self._clock()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        await self._turns.choosing()
        answer = messages.PreferredAllocationResponse()
        for one in request.container_requests:
            ids = self._preferred(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def Allocate(self, request: Any, context: Any) -> Any:
        self._turns.allocated()
        wanted = [list(one.devices_ids) for one in request.container_requests]
        try:
            responses = [self._allocate(ids) for ids in wanted]
        except LookupError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _sentence(error))
        for ids in wanted:
            self._hooks.allocated(ids)
            self._promises.add(ids, self._clock())
        return messages.AllocateResponse(container_responses=responses)

    def _allocate(self, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        missing = self._listing.missing(ids)
        if missing:
            raise LookupError(f"withdrawn some time ago: {', '.join(missing)}")
        return _response(self._hooks.edits(ids))

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        ids = list(request.devices_ids)
        deadline = self._clock() + READY_SECONDS
        while (why := await self._not_ready(ids)) is not None:
            if self._clock() + READY_POLL_SECONDS > deadline:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
            await asyncio.sleep(READY_POLL_SECONDS)
        return messages.PreStartContainerResponse()

    async def _not_ready(self, ids: list[str]) -> str | None:
        try:
            return await self._hooks.not_ready(ids)
        except LookupError as error:
            # A GPU may be on its way back to the share; only this container waits for it.
            return _sentence(error)


def _sentence(error: LookupError) -> str:
    return str(error.args[0]) if error.args else "these devices cannot be had now"


def _device(item: OfferedDevice) -> messages.Device:
    device = messages.Device(ID=item.id, health="Healthy" if item.healthy else "Unhealthy")
    if item.numa_node is not None:
        device.topology.nodes.add(ID=item.numa_node)
    return device


def _response(edits: ContainerEdits) -> messages.ContainerAllocateResponse:
    response = messages.ContainerAllocateResponse(envs=dict(edits.env))
    for mount in edits.mounts:
        response.mounts.add(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
    for node in edits.devices:
        response.devices.add(host_path=node.host_path, container_path=node.container_path, permissions=node.permissions)
    for name in edits.cdi_devices:
        response.cdi_devices.add(name=name)
    return response
