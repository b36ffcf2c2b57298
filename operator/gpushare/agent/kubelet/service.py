"""The device plugin's gRPC service: the kubelet's questions about one resource, answered by the kind of its devices.

Guarantees: Allocate never waits, and hands out listed ids alone (`listing` says why); an id is pending before the
kubelet gets the answer; a container for which `DeviceKind.not_ready` has a sentence does not start, and the kubelet
tries again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import Listing, OfferedDevice, PendingAllocations
from gpushare.agent.proto import deviceplugin_v1beta1_grpc as services
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.rpc.server import received

READY_SECONDS = 20.0
"""How long PreStartContainer waits for the container's GPU; the kubelet gives up after 30 s, and tries again."""
READY_POLL_SECONDS = 0.5


class DeviceKind(Protocol):
    """The devices of one kind. None of these waits, reads a disk or asks a driver: the kubelet starts no other pod
    meanwhile. LookupError: no container can have these ids; its text is a sentence for the user.
    """

    def has(self, device_ids: Collection[str]) -> bool:
        """Whether they are ids of this kind."""
        ...

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """What a container with these devices gets."""
        ...

    def allocated(self, device_ids: Sequence[str]) -> None:
        """Called for each container before Allocate answers with these ids."""
        ...

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        """`size` of the `available` ids, those of `must_include` among them: the ones that one container is to have."""
        ...

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        """A sentence: why a container with these ids may not start yet; None: it may."""
        ...


class AllocationMeters(Protocol):
    """What is measured is the time that the kubelet waits."""

    def observe_allocate(self, seconds: float, *, refused: bool) -> None:
        """A container's edits took so long to make, or were refused."""
        ...

    def count_not_ready(self) -> None:
        """A container was not allowed to start yet."""
        ...

    def observe_ready(self, seconds: float) -> None:
        """A container was allowed to start so long after its allocation."""
        ...


class Unmeasured:
    """The meters of devices for which no user waits, as of our own MPS pods."""

    def observe_allocate(self, seconds: float, *, refused: bool) -> None:
        pass

    def count_not_ready(self) -> None:
        pass

    def observe_ready(self, seconds: float) -> None:
        pass


UNMEASURED = Unmeasured()


class AllocationTimes:
    """When each device was allocated whose container has not been allowed to start, at most one entry for each id: a
    container that never starts is replaced by the next one with the same device.
    """

    def __init__(self, meters: AllocationMeters, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._meters = meters
        self._clock = clock
        self._allocated_at: dict[str, float] = {}

    def allocated(self, ids: Iterable[str]) -> None:
        self._allocated_at.update(dict.fromkeys(ids, self._clock()))

    def asked(self, ids: Iterable[str], *, ready: bool) -> None:
        """A container that is started again has no new allocation."""
        if not ready:
            self._meters.count_not_ready()
            return
        for device_id in ids:
            if (began := self._allocated_at.pop(device_id, None)) is not None:
                self._meters.observe_ready(self._clock() - began)


class DeviceService(services.DevicePluginBase):  # type: ignore[misc]
    """Serves one resource. Outlives the server that it is bound to, so a new one goes on with the same offer."""

    def __init__(
        self,
        kinds: Sequence[DeviceKind],
        clock: Callable[[], float],
        lock: AllocationLock,
        meters: AllocationMeters = UNMEASURED,
        ready_seconds: float = READY_SECONDS,
        ready_poll_seconds: float = READY_POLL_SECONDS,
    ) -> None:
        """`kinds`: of the resource's devices; the last one answers for ids that none of them has.

        `clock`: seconds; the one that times the readings of the kubelet that `settle` gets.
        """
        self.watchers = 0
        """Open streams of ListAndWatch."""
        self.watched_at = clock()
        """When the last stream ended, while none is open."""
        self._kinds = kinds
        self._clock = clock
        self._lock = lock
        self._ready_seconds = ready_seconds
        self._ready_poll_seconds = ready_poll_seconds
        self._listing = Listing()
        self._devices: list[OfferedDevice] = []
        self._changed = asyncio.Event()
        self._closing = False
        self._pending = PendingAllocations()
        self._meters = meters
        self._times = AllocationTimes(meters, clock)

    @property
    def devices(self) -> list[OfferedDevice]:
        """The list that the kubelet gets now."""
        return self._devices

    def offer(self, devices: Sequence[OfferedDevice]) -> None:
        """Replaces the offer: devices that it lacks are listed as unhealthy for a while."""
        self._listing.offer(devices, self._clock())
        self._list()

    def close(self) -> None:
        """Ends the open streams; the kubelet then takes all devices for unhealthy by itself."""
        self._closing = True
        self._wake_streams()

    def pending(self) -> frozenset[str]:
        """Device ids handed out that no reading of the kubelet has settled: it may not list them yet."""
        return self._pending.ids()

    def settle(self, listed: Collection[str], allocatable: Collection[str], started: float) -> None:
        """Ends pending allocations and withdrawals by a reading of PodResources begun at `started`.

        `listed`: the ids that containers hold; `allocatable`: those that the kubelet believes to be healthy.
        """
        self._pending.settle(listed, started)
        self._listing.settle({*listed, *allocatable, *self._pending.ids()}, started)
        self._list()

    def _list(self) -> None:
        devices = self._listing.devices()
        if devices != self._devices:
            self._devices = devices
            self._wake_streams()

    def _wake_streams(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def GetDevicePluginOptions(self, stream: Any) -> None:
        await stream.send_message(options())

    async def ListAndWatch(self, stream: Any) -> None:
        self.watchers += 1
        try:
            while not self._closing:
                changed = self._changed
                await stream.send_message(
                    messages.ListAndWatchResponse(devices=[_device(item) for item in self._devices])
                )
                await changed.wait()
        finally:
            self.watchers -= 1
            self.watched_at = self._clock()

    async def GetPreferredAllocation(self, stream: Any) -> None:
        request = await received(stream)
        await self._lock.choosing()
        answer = messages.PreferredAllocationResponse()
        for wanted in request.container_requests:
            available = wanted.available_deviceIDs
            ids = self._kind(available).prefer(available, wanted.must_include_deviceIDs, wanted.allocation_size)
            answer.container_responses.add(deviceIDs=ids)
        await stream.send_message(answer)

    async def Allocate(self, stream: Any) -> None:
        request = await received(stream)
        self._lock.allocated()
        wanted = [list(container.devices_ids) for container in request.container_requests]
        try:
            responses = [self._allocate(ids) for ids in wanted]
        except LookupError as error:
            raise GRPCError(Status.FAILED_PRECONDITION, _sentence(error)) from error
        for ids in wanted:
            self._kind(ids).allocated(ids)
            self._times.allocated(ids)
            self._pending.add(ids, self._clock())
        await stream.send_message(messages.AllocateResponse(container_responses=responses))

    def _allocate(self, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        missing = self._listing.missing(ids)
        if missing:
            raise LookupError(f"withdrawn some time ago: {', '.join(missing)}")
        return _response(self._edits(ids))

    def _edits(self, ids: Sequence[str]) -> ContainerEdits:
        began, refused = self._clock(), True
        try:
            edits = self._kind(ids).edits(ids)
            refused = False
        finally:
            self._meters.observe_allocate(self._clock() - began, refused=refused)
        return edits

    def _kind(self, ids: Collection[str]) -> DeviceKind:
        return next((kind for kind in self._kinds if kind.has(ids)), self._kinds[-1])

    async def PreStartContainer(self, stream: Any) -> None:
        ids = list((await received(stream)).devices_ids)
        deadline = self._clock() + self._ready_seconds
        while (why := self._not_ready(ids)) is not None:
            if self._clock() + self._ready_poll_seconds > deadline:
                raise GRPCError(Status.FAILED_PRECONDITION, why)
            await asyncio.sleep(self._ready_poll_seconds)
        await stream.send_message(messages.PreStartContainerResponse())

    def _not_ready(self, ids: list[str]) -> str | None:
        try:
            why = self._kind(ids).not_ready(ids)
        except LookupError as error:
            # The GPU may come back to the share; no other container waits for it.
            why = _sentence(error)
        self._times.asked(ids, ready=why is None)
        return why


def options() -> messages.DevicePluginOptions:
    return messages.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


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
