"""The driver's Xids, as NVML reports them: awaited in a thread of their own.

Guarantees: nothing is polled, and a driver that hangs holds up nothing else. Does not guarantee that every Xid arrives:
NVML reports the critical ones of GPUs that support events, and loses those of a moment when nobody waits.
"""

import asyncio
import logging
from collections.abc import Callable

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.messages.log_on_change import LogOnChange
from gpushare.nvml.types import Nvml, NvmlError, Xid

LOG = logging.getLogger(__name__)
WAIT_SECONDS = 10.0
SPARE_SECONDS = 10.0
RETRY_SECONDS = 30.0


class XidWatch:
    def __init__(self, nvml: Nvml, seen: Callable[[Xid], None], retry_seconds: float = RETRY_SECONDS) -> None:
        """`seen` is called in the event loop and must not block."""
        self._nvml = nvml
        self._seen = seen
        self._retry_seconds = retry_seconds
        self._caller = BlockingCaller("NVML's events", WAIT_SECONDS + SPARE_SECONDS)
        self._problems = LogOnChange(LOG)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                xids = await self._caller.call(self._nvml.wait_for_xids, WAIT_SECONDS)
                self._problems.clear()
            except (NvmlError, HungError) as error:
                self._problems.log("Xids are not known: %s", error)
                await asyncio.sleep(self._retry_seconds)
                continue
            for xid in xids:
                LOG.warning("GPU %s: Xid %d", xid.uuid, xid.number)
                self._seen(xid)
