"""A device plugin of the test's own, in the place of NVIDIA's or any other, at the real kubelet."""

import asyncio
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.kubelet.allocation_lock import AllocationLock
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.kubelet.plugin import DevicePlugin
from gpushare.mps.clock import boot_clock
from tests.cluster.harness import Harness, wait_until


class BareDevices:
    """Answers the kubelet as a plugin that gives containers nothing beyond the count."""

    def has(self, device_ids: Collection[str]) -> bool:
        return True

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        return ContainerEdits()

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return sorted(available)[:size]

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return None


@contextmanager
def other_plugin(harness: Harness, resource: str) -> Iterator[None]:
    """Lets node1 offer two of the resource while it is open."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stand-in plugin", daemon=True)
    thread.start()

    async def begin() -> DevicePlugin:
        directory = harness.in_node("/var/lib/kubelet/device-plugins")
        plugin = DevicePlugin(resource, directory, [BareDevices()], boot_clock, AllocationLock(boot_clock))
        plugin.offer([OfferedDevice(f"whole-{number}", True, None) for number in range(2)])
        await plugin.start()
        return plugin

    plugin = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    try:
        wait_until(f"{resource} is offered", lambda: harness.allocatable(resource) == 2, 30)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(plugin.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        wait_until(f"{resource} is withdrawn", lambda: harness.allocatable(resource) == 0, 30)
