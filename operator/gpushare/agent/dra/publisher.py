"""Keeps this node's ResourceSlice as it should be. Writes only what differs.

The kubelet deletes the slice when it starts, and half a minute after the driver's socket is gone; it is created again
as soon as the deletion is seen.
"""

import asyncio
import logging
from collections.abc import Callable

from gpushare.agent.dra.slices import same
from gpushare.api import names
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import API_ERRORS, NODES, RESOURCE_SLICES, Kube, KubeError, Object
from gpushare.messages.log_on_change import LogOnChange
from gpushare.messages.refused_writes import RefusedWrite, refused_sentence

LOG = logging.getLogger(__name__)
MANAGER = "gpushare-agent"
RETRY_SECONDS = 5.0


class SlicePublisher:
    def __init__(self, kube: Kube, node: str, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        """`changed` is called in the event loop when the API server's slice has changed."""
        self._kube = kube
        self._node = node
        self._clock = clock
        selector = f"spec.driver={names.DRA_DRIVER},spec.nodeName={node}"
        self._slices = Reflector(kube, RESOURCE_SLICES, changed, fieldSelector=selector)
        self._following: asyncio.Task[None] | None = None
        self._node_uid = ""
        self._retry_at = 0.0
        self._problems = LogOnChange(LOG)
        self.refused = ""
        """Why the API server took no slice twice in a row, with what mends it; empty: it did, or could not answer."""
        self._failures = 0

    @property
    def known(self) -> bool:
        """Whether the API server's slice was read."""
        return self._following is not None and self._slices.synced.is_set()

    @property
    def present(self) -> Object | None:
        """The API server's slice."""
        return self._slices.objects.get(("", names.slice_name(self._node)))

    def follow(self) -> None:
        """Starts the watch, once: only where a share is delivered by claims."""
        if self._following is None:
            self._following = asyncio.create_task(self._slices.run(), name="follow resourceslices")

    async def close(self) -> None:
        """Leaves the slice for the next agent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def node_uid(self) -> str:
        """The UID of the Node, which owns the slice; empty: it cannot be read."""
        if self.known and self.present is None:
            self._node_uid = ""  # it may have gone with its Node, which has another UID once it is made again
        if not self._node_uid:
            try:
                self._node_uid = (await self._kube.get(NODES, self._node))["metadata"]["uid"]
            except API_ERRORS as error:
                self._problems.log("Node %s not read: %s", self._node, error)
        return self._node_uid

    async def publish(self, desired: Object | None) -> None:
        """Creates, changes or (None) deletes the slice. Logs errors; a later call tries again."""
        if not self.known or self._clock() < self._retry_at:
            return
        present = self.present
        try:
            if desired is None:
                if present is not None:
                    await self._kube.delete(
                        RESOURCE_SLICES, present["metadata"]["name"], uid=present["metadata"]["uid"]
                    )
            elif present is None or not same(desired, present):
                name = desired["metadata"]["name"]
                self._slices.observe(await self._kube.apply(RESOURCE_SLICES, name, desired, manager=MANAGER))
            self._problems.clear()
            self.refused, self._failures = "", 0
        except API_ERRORS as error:
            self._retry_at = self._clock() + RETRY_SECONDS
            self._failures += 1
            if isinstance(error, KubeError) and error.refused and self._failures > 1:
                name = names.slice_name(self._node)
                self.refused = refused_sentence(
                    RefusedWrite(f"to apply resourceslices {name}", error.status, str(error))
                )
            self._node_uid = ""  # the Node may have been created again
            self._problems.log("ResourceSlice %s not written: %s", names.slice_name(self._node), error)
