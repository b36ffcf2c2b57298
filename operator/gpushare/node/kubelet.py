"""What the kubelet says about our slots, read again after every change and every few seconds."""

import logging
from collections.abc import Callable
from typing import Protocol

from gpushare.node.draining import KubeletView, by_gpu
from gpushare.node.podresources import HeldDevice, PodResourcesError

LOG = logging.getLogger(__name__)


class Source(Protocol):
    async def held(self) -> list[HeldDevice]: ...

    async def allocatable(self) -> set[tuple[str, str]]: ...


class KubeletReader:
    """`view` is the last reading that succeeded; None before the first, and then nothing may be offered."""

    def __init__(self, source: Source, clock: Callable[[], float]) -> None:
        self.view: KubeletView | None = None
        self.error = ""
        self._source = source
        self._clock = clock

    async def poll(self) -> None:
        started = self._clock()
        try:
            # In this order: what is held is final only for slots that cannot be allocated any more.
            allocatable = await self._source.allocatable()
            held = await self._source.held()
        except PodResourcesError as error:
            if not self.error:
                LOG.warning("the kubelet's pod resources cannot be read: %s", error)
            self.error = str(error)
            return
        self.error = ""
        self.view = KubeletView(started, by_gpu(allocatable), by_gpu([(item.resource, item.id) for item in held]))
