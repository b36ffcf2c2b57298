"""Keeps this node's ResourceSlice in the API what it should be.

The kubelet deletes it when it starts, and half a minute after the driver's socket went; it is made again as soon as
that is seen. Nothing is written while nothing differs.
"""

import asyncio
import logging
from collections.abc import Callable

from gpushare.agent.dra.slices import same
from gpushare.api import names
from gpushare.kube.client import API_ERRORS, NODES, RESOURCE_SLICES, Kube, Object
from gpushare.kube.reflector import Reflector

LOG = logging.getLogger(__name__)
MANAGER = "gpushare-agent"
RETRY_SECONDS = 5.0


class SlicePublisher:
    def __init__(self, kube: Kube, node: str, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        """`changed` is called when the slice in the API changed, in the event loop."""
        self._kube = kube
        self._node = node
        self._clock = clock
        selector = f"spec.driver={names.DRA_DRIVER},spec.nodeName={node}"
        self._slices = Reflector(kube, RESOURCE_SLICES, changed, fieldSelector=selector)
        self._following: asyncio.Task[None] | None = None
        self._node_uid = ""
        self._retry_at = 0.0
        self._told = ""

    @property
    def known(self) -> bool:
        """False: what the API holds of ours is not known (yet)."""
        return self._following is not None and self._slices.synced.is_set()

    @property
    def present(self) -> Object | None:
        """The slice as the API has it."""
        return self._slices.objects.get(("", names.slice_name(self._node)))

    def follow(self) -> None:
        """Begins to follow, once: only where there is a share that is delivered by claims."""
        if self._following is None:
            self._following = asyncio.create_task(self._slices.run(), name="follow resourceslices")

    async def close(self) -> None:
        """The slice stays: the next agent goes on with it."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def node_uid(self) -> str:
        """Of the Node, which owns the slice; empty while it cannot be read."""
        if not self._node_uid:
            try:
                self._node_uid = (await self._kube.get(NODES, self._node))["metadata"]["uid"]
            except API_ERRORS as error:
                self._note(f"Node {self._node} not read: {error}")
        return self._node_uid

    async def publish(self, wanted: Object | None) -> None:
        """Makes the API's slice `wanted`; None: there is to be none. Errors are logged, and tried again later."""
        if not self.known or self._clock() < self._retry_at:
            return
        present = self.present
        try:
            if wanted is None:
                if present is not None:
                    await self._kube.delete(
                        RESOURCE_SLICES, present["metadata"]["name"], uid=present["metadata"]["uid"]
                    )
            elif present is None or not same(wanted, present):
                name = wanted["metadata"]["name"]
                self._slices.observe(await self._kube.apply(RESOURCE_SLICES, name, wanted, manager=MANAGER))
            self._note("")
        except API_ERRORS as error:
            self._retry_at = self._clock() + RETRY_SECONDS
            self._node_uid = ""  # the Node may have been made again
            self._note(f"ResourceSlice {names.slice_name(self._node)} not written: {error}")

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            LOG.warning("%s", trouble)
        self._told = trouble
