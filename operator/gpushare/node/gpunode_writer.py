"""This node's GpuNode: created when missing, its status written when it differs, and seldom.

A GpuNode goes with its Node object, by garbage collection; as long as the agent runs it comes back with the Node.
"""

import logging
from collections.abc import Callable

import aiohttp

from gpushare.api import names
from gpushare.api.gpunode import GpuNode, GpuNodeStatus
from gpushare.kube.client import GPU_NODES, NODES, Kube, KubeError, Object
from gpushare.node.status import urgent
from gpushare.node.throttle import Throttle

LOG = logging.getLogger(__name__)
MANAGER = "gpushare-agent"
FAILURES = (KubeError, aiohttp.ClientError, TimeoutError, OSError)
RETRY_SECONDS = 5.0
CACHE_LAG_SECONDS = 5.0


class GpuNodeWriter:
    def __init__(self, kube: Kube, node: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._node = node
        self._clock = clock
        self._throttle = Throttle(counted_at=clock())
        self._create_at = 0.0
        self._write_at = 0.0
        self._written: tuple[str, GpuNodeStatus, float] | None = None
        """(the object's uid, status, when): what a cache that lags behind our own write does not show yet."""

    async def create(self) -> None:
        """Errors are logged; the caller tries again with its next tick, which this holds to one in 5 s."""
        if self._clock() < self._create_at:
            return
        self._create_at = self._clock() + RETRY_SECONDS
        try:
            node = await self._kube.get(NODES, self._node)
            body = {**_identity(self._node), "metadata": {"name": self._node, "ownerReferences": [_owner(node)]}}
            await self._kube.apply(GPU_NODES, self._node, body, manager=MANAGER)
        except FAILURES as error:
            LOG.warning("GpuNode %s not created: %s", self._node, error)

    async def write(self, status: GpuNodeStatus, cached: GpuNode) -> None:
        """Writes `status` if it differs from what the API holds and a write is due."""
        now = self._clock()
        if status == cached.status or self._just_written(cached.metadata.uid, status, now):
            return
        if now < self._write_at or self._throttle.wait(now, urgent=urgent(status, cached.status)) > 0:
            return
        self._throttle.wrote(now)
        body = {**_identity(self._node), "metadata": {"name": self._node}, "status": status.wire()}
        try:
            await self._kube.apply(GPU_NODES, self._node, body, manager=MANAGER, subresource="status")
            self._written = (cached.metadata.uid, status, now)
        except FAILURES as error:
            self._write_at = now + RETRY_SECONDS
            LOG.warning("status of GpuNode %s not written: %s", self._node, error)

    def _just_written(self, uid: str, status: GpuNodeStatus, now: float) -> bool:
        if self._written is None:
            return False
        written_uid, written, at = self._written
        return uid == written_uid and status == written and now - at < CACHE_LAG_SECONDS


def _identity(node: str) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "GpuNode", "metadata": {"name": node}}


def _owner(node: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
