"""The device plugin against a kubelet on real sockets."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpushare.agent.gpus.edits import ContainerEdits, DeviceNode, Mount
from gpushare.agent.kubelet.allocation_lock import RECORDED_SECONDS, AllocationLock
from gpushare.agent.kubelet.listing import WITHDRAWN_SECONDS, OfferedDevice, preferred_slots
from gpushare.agent.kubelet.plugin import DevicePlugin, PluginTimes
from gpushare.agent.proto import deviceplugin_v1beta1_pb2 as messages
from gpushare.api import names
from gpushare.api.gpushare import Placement
from tests.unit.agent.fake_kubelet import FakeKubelet
from tests.unit.clock import Clock
from tests.unit.small_disk import read_only, small_disk

RESOURCE = "gpushare.dev/inference"
SLOT = OfferedDevice("GPU-1::0", True, 1)
OTHER = OfferedDevice("GPU-1::1", True, None)
EDITS = ContainerEdits(
    env={"A": "1"},
    mounts=(Mount("/host", "/inside"),),
    devices=(DeviceNode("/dev/nvidia7", "/dev/nvidia0"),),
    cdi_devices=("gpushare.dev/gpu=GPU-1",),
)


QUICK = PluginTimes(poll=0.05, max_retry=0.2, abandoned=0.2, ready=0.3, ready_poll=0.02)


class FakeKind:
    def __init__(self) -> None:
        self.refusal = ""
        self.unready: list[str | None] = []
        self.asked: list[list[str]] = []
        self.given: list[list[str]] = []
        self.wanted = Placement.SPREAD

    def has(self, device_ids: Collection[str]) -> bool:
        return True

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        self.asked.append(list(device_ids))
        if self.refusal:
            raise LookupError(self.refusal)
        return EDITS

    def allocated(self, device_ids: Sequence[str]) -> None:
        self.given.append(list(device_ids))

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return preferred_slots(available, must_include, size, self.wanted)

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        if self.refusal:
            raise LookupError(self.refusal)
        return self.unready.pop(0) if len(self.unready) > 1 else (self.unready or [None])[0]


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    """Short: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder)


@pytest.fixture
async def kubelet(kubelet_dir: Path) -> AsyncIterator[FakeKubelet]:
    fake = FakeKubelet(kubelet_dir)
    yield fake
    await fake.stop()


@pytest.fixture
def kind() -> FakeKind:
    return FakeKind()


@pytest.fixture
def lock_clock() -> Clock:
    return Clock()


@pytest.fixture
def lock(lock_clock: Clock) -> AllocationLock:
    return AllocationLock(lock_clock)


@pytest.fixture
async def served(kubelet_dir: Path, kind: FakeKind, lock: AllocationLock) -> AsyncIterator[DevicePlugin]:
    served = DevicePlugin(RESOURCE, kubelet_dir / "device-plugins", [kind], time.monotonic, lock, times=QUICK)
    yield served
    await served.stop()


async def test_registers_and_offers_nothing_before_the_first_offer(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists == [{}])
    request = kubelet.registrations[0]
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert request.endpoint == names.plugin_socket(RESOURCE)
    assert request.options.pre_start_required
    assert request.options.get_preferred_allocation_available


async def test_every_change_of_the_offer_is_sent_and_nothing_else(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: len(kubelet.lists) == 1)
    served.offer([SLOT])
    served.offer([SLOT, OfferedDevice(OTHER.id, False, None)])
    await kubelet.until(lambda: len(kubelet.lists) == 2)
    assert kubelet.lists == [{"GPU-1::0": "Healthy"}, {"GPU-1::0": "Healthy", "GPU-1::1": "Unhealthy"}]


async def test_the_numa_node_travels_with_the_device(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    served.offer([SLOT, OTHER])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    async with kubelet.plugin().ListAndWatch.open() as stream:
        await stream.send_message(messages.Empty(), end=True)
        answer = await stream.recv_message()
        await stream.cancel()
    assert [[node.ID for node in device.topology.nodes] for device in answer.devices] == [[1], []]


async def test_a_restarted_kubelet_is_served_again_with_the_same_offer(
    kubelet: FakeKubelet, served: DevicePlugin
) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    for restarts in range(3):
        await kubelet.until(lambda restarts=restarts: len(kubelet.lists) == restarts + 1)
        await kubelet.stop()
        await kubelet.start()
    await kubelet.until(lambda: len(kubelet.lists) == 4)
    assert kubelet.lists == [{"GPU-1::0": "Healthy"}] * 4
    assert len(kubelet.registrations) == 4


async def test_a_wiped_socket_is_made_again(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    (kubelet.plugins / names.plugin_socket(RESOURCE)).unlink()
    await kubelet.until(lambda: len(kubelet.registrations) == 2 and len(kubelet.lists) == 2)


async def test_a_socket_that_cannot_be_made_is_a_problem_until_it_can(
    kubelet: FakeKubelet, served: DevicePlugin
) -> None:
    with small_disk(kubelet.plugins):
        await kubelet.start()
        served.offer([SLOT])
        with read_only(kubelet.plugins):
            await served.start()
            async with asyncio.timeout(8):
                while "Read-only file system" not in served.problem:  # noqa: ASYNC110 - a property has no event
                    await asyncio.sleep(0.01)
            assert not kubelet.registrations
        await kubelet.until(lambda: kubelet.lists == [{"GPU-1::0": "Healthy"}])
        assert served.problem == ""
        await served.stop()
        await kubelet.stop()


async def test_a_kubelet_that_comes_late_is_found(
    kubelet: FakeKubelet, served: DevicePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (kubelet.plugins, kubelet.pod_resources.parent):
        path.rmdir()
    served.offer([SLOT])
    await served.start()
    async with asyncio.timeout(8):
        while "not registered, trying again" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
    for path in (kubelet.plugins, kubelet.pod_resources.parent):
        path.mkdir()
    await kubelet.start()
    await kubelet.until(lambda: kubelet.lists == [{"GPU-1::0": "Healthy"}])


async def test_a_refused_registration_is_tried_again(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    kubelet.refusals = 2
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    assert len(kubelet.registrations) == 1


async def test_only_a_kubelet_that_stops_watching_is_registered_with_again(
    kubelet_dir: Path, kubelet: FakeKubelet, kind: FakeKind, lock: AllocationLock
) -> None:
    clock = Clock()
    served = DevicePlugin(RESOURCE, kubelet_dir / "device-plugins", [kind], clock, lock, times=QUICK)
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    clock.now += QUICK.abandoned + 1
    await read_often(clock)
    assert len(kubelet.registrations) == 1
    await kubelet.stop_watching()
    await read_often(clock)
    clock.now += QUICK.abandoned + 1
    await kubelet.until(lambda: len(kubelet.registrations) == 2)
    await served.stop()


async def read_often(clock: Clock) -> None:
    """The plugin, which reads the clock at each turn, has made a few."""
    before = clock.reads
    async with asyncio.timeout(8):
        while clock.reads < before + 4:  # noqa: ASYNC110 - a clock has no event
            await asyncio.sleep(0.01)


async def test_a_restarted_agent_replaces_the_socket_that_was_left(
    kubelet: FakeKubelet, served: DevicePlugin, kubelet_dir: Path
) -> None:
    await kubelet.start()
    (kubelet_dir / "device-plugins" / names.plugin_socket(RESOURCE)).touch()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)


async def test_a_withdrawn_device_is_listed_as_unhealthy_and_vanishes_later(
    kubelet: FakeKubelet, served: DevicePlugin
) -> None:
    await kubelet.start()
    served.offer([SLOT, OTHER])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    served.offer([SLOT])
    await kubelet.until(lambda: len(kubelet.lists) == 2)
    served.settle((), (SLOT.id,), time.monotonic() + WITHDRAWN_SECONDS)
    await kubelet.until(lambda: len(kubelet.lists) == 3)
    assert kubelet.lists[1:] == [{"GPU-1::0": "Healthy", "GPU-1::1": "Unhealthy"}, {"GPU-1::0": "Healthy"}]


async def test_a_withdrawn_device_stays_listed_while_it_is_pending(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    served.offer([])
    await kubelet.until(lambda: kubelet.lists[-1] == {"GPU-1::0": "Unhealthy"})
    await allocate(kubelet, SLOT.id)
    later = time.monotonic() + WITHDRAWN_SECONDS
    served.settle((), (), later)
    assert served.listed()
    served.settle((SLOT.id,), (), later)
    assert served.listed()
    served.settle((), (), later)
    assert not served.listed()


async def test_a_device_that_left_the_list_is_refused(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind
) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    with pytest.raises(GRPCError) as refused:
        await allocate(kubelet, OTHER.id)
    assert refused.value.status is Status.FAILED_PRECONDITION
    assert "GPU-1::1" in (refused.value.message or "")
    assert (served.pending(), kind.given) == (frozenset(), [])


async def test_a_plugin_stops_though_its_socket_cannot_be_removed(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    with small_disk(kubelet.plugins):
        await kubelet.start()
        served.offer([SLOT])
        await served.start()
        await kubelet.until(lambda: kubelet.lists)
        with read_only(kubelet.plugins):
            await served.stop()
            await kubelet.until(lambda: not kubelet.watching)
        assert (kubelet.plugins / names.plugin_socket(RESOURCE)).exists()
        await kubelet.stop()


async def allocate(kubelet: FakeKubelet, *ids: str) -> Any:
    """Allocates for one container for each id."""
    wanted = [messages.ContainerAllocateRequest(devices_ids=[device_id]) for device_id in ids]
    return await kubelet.plugin().Allocate(messages.AllocateRequest(container_requests=wanted))


async def test_stopping_ends_the_stream_without_a_shorter_list(kubelet: FakeKubelet, served: DevicePlugin) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    await served.stop()
    await kubelet.until(lambda: not kubelet.watching)
    assert kubelet.lists == [{"GPU-1::0": "Healthy"}]
    assert [file.name for file in kubelet.plugins.iterdir()] == ["kubelet.sock"]


async def test_allocate_answers_for_each_container_and_keeps_its_ids(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind
) -> None:
    await kubelet.start()
    served.offer([SLOT, OTHER])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    answer = await allocate(kubelet, SLOT.id, OTHER.id)
    assert len(answer.container_responses) == 2
    first = answer.container_responses[0]
    assert dict(first.envs) == {"A": "1"}
    assert [(m.host_path, m.container_path, m.read_only) for m in first.mounts] == [("/host", "/inside", True)]
    node = first.devices[0]
    assert (node.host_path, node.container_path, node.permissions) == ("/dev/nvidia7", "/dev/nvidia0", "rw")
    assert [device.name for device in first.cdi_devices] == ["gpushare.dev/gpu=GPU-1"]
    assert kind.asked == kind.given == [["GPU-1::0"], ["GPU-1::1"]]
    assert served.pending() == {"GPU-1::0", "GPU-1::1"}
    served.settle({"GPU-1::0"}, (), time.monotonic())
    assert served.pending() == {"GPU-1::1"}


async def test_allocate_refuses_with_the_sentence_and_leaves_nothing_pending(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind
) -> None:
    kind.refusal = "GPU GPU-1 does not belong to GpuShare inference any more"
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    with pytest.raises(GRPCError) as refused:
        await allocate(kubelet, SLOT.id)
    assert (refused.value.status, refused.value.message) == (Status.FAILED_PRECONDITION, kind.refusal)
    assert served.pending() == frozenset()
    assert kind.given == []


async def test_a_container_starts_once_its_gpu_is_ready(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind
) -> None:
    kind.unready = ["the daemon starts", "the daemon starts", None]
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    await kubelet.plugin().PreStartContainer(messages.PreStartContainerRequest(devices_ids=["GPU-1::0"]))
    assert kind.unready == [None]


@pytest.mark.parametrize("by_error", [False, True], ids=["not ready", "not the share's"])
async def test_a_container_does_not_start_while_its_gpu_is_not_ready(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind, by_error: bool
) -> None:
    kind.unready = ["the daemon starts"]
    kind.refusal = "the daemon starts" if by_error else ""
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    began = asyncio.get_running_loop().time()
    with pytest.raises(GRPCError) as refused:
        await kubelet.plugin().PreStartContainer(messages.PreStartContainerRequest(devices_ids=["GPU-1::0"]))
    assert (refused.value.status, refused.value.message) == (Status.FAILED_PRECONDITION, "the daemon starts")
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_preferred_ids_follow_the_shares_placement_for_each_container(
    kubelet: FakeKubelet, served: DevicePlugin, kind: FakeKind
) -> None:
    await kubelet.start()
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    container = messages.ContainerPreferredAllocationRequest(
        available_deviceIDs=["A::1", "B::0", "B::1"], allocation_size=1
    )
    request = messages.PreferredAllocationRequest(container_requests=[container, container])
    answer = await kubelet.plugin().GetPreferredAllocation(request)
    assert [list(response.deviceIDs) for response in answer.container_responses] == [["B::0"], ["B::0"]]
    kind.wanted = Placement.PACK
    answer = await kubelet.plugin().GetPreferredAllocation(request)
    assert [list(response.deviceIDs) for response in answer.container_responses] == [["A::1"], ["A::1"]]


async def test_the_kubelet_s_holders_are_not_read_while_it_allocates(
    kubelet: FakeKubelet, served: DevicePlugin, lock: AllocationLock, lock_clock: Clock
) -> None:
    await kubelet.start()
    served.offer([SLOT])
    await served.start()
    await kubelet.until(lambda: kubelet.lists)
    container = messages.ContainerPreferredAllocationRequest(available_deviceIDs=[SLOT.id], allocation_size=1)
    await kubelet.plugin().GetPreferredAllocation(messages.PreferredAllocationRequest(container_requests=[container]))
    reading = asyncio.create_task(read(lock))
    lock_clock.now += RECORDED_SECONDS
    await allocate(kubelet, SLOT.id)
    assert not reading.done()
    lock_clock.now += RECORDED_SECONDS
    async with asyncio.timeout(5):
        await reading


async def read(lock: AllocationLock) -> None:
    async with lock.reading():
        pass
