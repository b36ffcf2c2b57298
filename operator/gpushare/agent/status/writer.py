"""This node's GpuNode: created when missing, its status written when it differs, and seldom.

A GpuNode goes with its Node object, by garbage collection; as long as the agent runs it comes back with the Node.

When a changed status may be written: at once after quiet, seldom under constant change. Pure, with the clock given.

Two speeds. What others act on (a daemon becomes ready, a GPU is drained) is written at once; the rest waits until 10 s
after the last write. Both spend from the same allowance of one write per 2 s that saves up a few: shares that are made
and deleted in quick succession are not held up, and something that flaps all day costs the API server little.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.agent.status.status import urgent
from gpushare.api import names
from gpushare.api.gpunode import GpuNode, GpuNodeStatus
from gpushare.kube.client import API_ERRORS, GPU_NODES, NODES, Kube, Object

LOG = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two writes that nobody waits for."""
EARNED_EVERY = 2.0
SAVED = 10.0


@dataclass(slots=True)
class Throttle:
    allowance: float = SAVED
    counted_at: float = 0.0
    last_write: float = -INTERVAL

    def wait(self, now: float, *, urgent: bool) -> float:
        """Seconds until a write is due; 0 means now."""
        earned = self._allowance(now)
        for_allowance = max(0.0, (1.0 - earned) * EARNED_EVERY)
        return for_allowance if urgent else max(for_allowance, self.last_write + INTERVAL - now)

    def wrote(self, now: float) -> None:
        self.allowance = self._allowance(now) - 1.0
        self.counted_at = self.last_write = now

    def _allowance(self, now: float) -> float:
        return min(SAVED, self.allowance + (now - self.counted_at) / EARNED_EVERY)


MANAGER = "gpushare-agent"
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
        except API_ERRORS as error:
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
        except API_ERRORS as error:
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
