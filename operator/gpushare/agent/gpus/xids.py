"""The driver's Xids as NVML tells them, awaited in a thread of their own.

Guarantees: nothing is polled, and a driver that hangs holds up nothing else. Does not guarantee that every Xid comes:
NVML tells the critical ones of GPUs that support events, and those of a moment when nobody waits are lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.api.gpunode import Uuid
from gpushare.nvml.types import Nvml, NvmlError, Xid

LOG = logging.getLogger(__name__)
WAIT_SECONDS = 10.0
SPARE_SECONDS = 10.0
RETRY_SECONDS = 30.0


class XidWatch:
    def __init__(self, nvml: Nvml, seen: Callable[[Xid], None]) -> None:
        """`seen` is called in the event loop and must not block."""
        self.counts: Counter[tuple[Uuid, int]] = Counter()
        """By GPU and number, since this process started."""
        self._nvml = nvml
        self._seen = seen
        self._lane = BlockingCaller("NVML's events", WAIT_SECONDS + SPARE_SECONDS)
        self._told = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                found = await self._lane.call(self._nvml.wait_for_xids, WAIT_SECONDS)
                self._told = ""
            except (NvmlError, HungError) as error:
                if str(error) != self._told:
                    LOG.warning("Xids are not known: %s", error)
                self._told = str(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for xid in found:
                LOG.warning("GPU %s: Xid %d", xid.uuid, xid.number)
                self.counts[xid.uuid, xid.number] += 1
                self._seen(xid)
