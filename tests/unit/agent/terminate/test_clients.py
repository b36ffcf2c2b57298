"""One scan of each GPU at a time: GPUs do not wait for one another, and a change during a scan is not missed."""

import asyncio

from gpushare.agent.terminate.clients import GpuScans


class World:
    """Each scan of a GPU lasts until its gate opens."""

    def __init__(self) -> None:
        self.scanned: list[str] = []
        self.gates = {"GPU-0": asyncio.Event(), "GPU-1": asyncio.Event()}
        self.scans = GpuScans("scan of", self._scan)

    async def _scan(self, uuid: str) -> None:
        self.scanned.append(uuid)
        await self.gates[uuid].wait()


async def test_a_gpu_that_is_asked_for_during_its_scan_is_scanned_once_more() -> None:
    world = World()
    world.scans.start(["GPU-0"])
    await asyncio.sleep(0)
    for _ in range(3):
        tasks = world.scans.start(["GPU-0"])
    world.gates["GPU-0"].set()
    await asyncio.gather(*tasks)
    assert world.scanned == ["GPU-0"] * 2
    assert world.scans.start([]) == []


async def test_a_gpu_whose_scan_hangs_holds_up_no_other() -> None:
    world = World()
    world.gates["GPU-1"].set()
    hanging, other = world.scans.start(["GPU-0", "GPU-1"])
    await other
    assert not hanging.done()
    world.scans.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    assert hanging.cancelled()
