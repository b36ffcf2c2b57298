"""What the kubelet says about our slots, read again after every change and every few seconds."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from gpushare.kube.client import Object
from gpushare.node.holdings import HeldDevice, KubeletView, view
from gpushare.node.plausible import implausible
from gpushare.node.podresources import PodResourcesError

LOG = logging.getLogger(__name__)


class Source(Protocol):
    async def held(self) -> list[HeldDevice]: ...

    async def allocatable(self) -> set[tuple[str, str]]: ...


class KubeletReader:
    """`view` is the last plausible reading; None before the first, and then nothing may be offered.

    `error` says why a later one is not it: the kubelet did not answer, or what it lists cannot be true.
    """

    def __init__(self, source: Source, clock: Callable[[], float], pods: Callable[[], Iterable[Object] | None]) -> None:
        """`pods`: this node's, by the API; None while they are not known, and every reading is then believed."""
        self.view: KubeletView | None = None
        self.error = ""
        self._source = source
        self._clock = clock
        self._pods = pods

    async def poll(self) -> None:
        try:
            found = await self._read()
        except PodResourcesError as error:
            self._note(str(error))
            return
        pods = self._pods()
        problem = None if pods is None else implausible(found.containers(), pods)
        self._note(problem or "")
        if problem is None:
            self.view = found

    async def _read(self) -> KubeletView:
        started = self._clock()
        # In this order: what is held is final only for slots that cannot be allocated any more.
        allocatable = await self._source.allocatable()
        held = await self._source.held()
        return view(started, allocatable, held, self.view)

    def _note(self, error: str) -> None:
        if error and error != self.error:
            LOG.warning("no new view of the kubelet's slots: %s", error)
        elif self.error and not error:
            LOG.info("the kubelet's slots are known again")
        self.error = error
