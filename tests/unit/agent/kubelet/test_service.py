"""The time that the kubelet waits for an allocation, as the device plugin's service measures it."""

from collections.abc import Collection, Sequence

import pytest
from grpclib.exceptions import GRPCError
from prometheus_client import CollectorRegistry

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.service import DeviceService
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.agent.status.meters import NodeMeters
from tests.unit.agent.fake_node import Call
from tests.unit.clock import Clock


class Kind:
    """Devices as a test sets them."""

    def __init__(self, name: str = "x") -> None:
        self.why: str | None = None
        self.lost = False
        self._name = name

    def has(self, device_ids: Collection[str]) -> bool:
        return any(device_id.startswith(self._name) for device_id in device_ids)

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        if self.lost:
            raise LookupError("it is gone")
        return ContainerEdits(env={"KIND": self._name})

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return sorted(available)[:size]

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return self.why


class Plugin:
    """The service of devices x::0 and y::0, of a kind each, which never waits for a container's start."""

    def __init__(self) -> None:
        self.x, self.y, self.clock, self.registry = Kind(), Kind("y"), Clock(), CollectorRegistry()
        lock, meters = AllocationLock(self.clock), NodeMeters(self.registry)
        self.service = DeviceService([self.x, self.y], self.clock, lock, meters, ready_seconds=0.0)
        self.service.offer([OfferedDevice(device_id, True, None) for device_id in ("x::0", "y::0")])

    async def allocate(self, device_id: str = "x::0") -> dict[str, str]:
        container = messages.ContainerAllocateRequest(devices_ids=[device_id])
        call = Call(messages.AllocateRequest(container_requests=[container]))
        await self.service.Allocate(call)
        return dict(call.answers[0].container_responses[0].envs)

    async def start(self) -> str:
        """Why the container of x::0 may not start; empty: it may."""
        try:
            await self.service.PreStartContainer(Call(messages.PreStartContainerRequest(devices_ids=["x::0"])))
        except GRPCError as error:
            return str(error.message)
        return ""

    def value(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"gpushare_{name}")


async def test_the_time_from_allocate_to_ready_is_taken_once_for_each_allocation() -> None:
    plugin = Plugin()
    await plugin.allocate()
    plugin.x.why, plugin.clock.now = "the daemon starts", plugin.clock.now + 3.0
    assert await plugin.start() == "the daemon starts"
    plugin.x.why, plugin.clock.now = None, plugin.clock.now + 1.0
    assert await plugin.start() == ""
    plugin.clock.now += 90.0  # the container starts again, in the allocation that it had
    assert await plugin.start() == ""
    assert plugin.value("allocation_ready_seconds_count") == 1
    assert plugin.value("allocation_ready_seconds_sum") == 4.0
    assert plugin.value("prestart_not_ready_total") == 1
    assert plugin.value("allocate_duration_seconds_count") == 1
    assert plugin.value("allocate_refused_total") == 0


async def test_a_refused_allocation_is_counted_and_refused_all_the_same() -> None:
    plugin = Plugin()
    plugin.x.lost = True
    with pytest.raises(GRPCError, match="it is gone"):
        await plugin.allocate()
    assert plugin.value("allocate_refused_total") == 1
    assert plugin.service.pending() == frozenset()


async def test_each_device_is_answered_for_by_its_own_kind() -> None:
    plugin = Plugin()
    assert await plugin.allocate("x::0") == {"KIND": "x"}
    assert await plugin.allocate("y::0") == {"KIND": "y"}
