"""One replica of the operator: it waits for the Lease, and follows the fleet and plans only while it holds it.

Guarantees: without the Lease nothing is written, and nothing but GpuShares is kept, so that a replica that waits costs
little. When the Lease is lost no further write is sent and all work is cancelled; `ended` is set then, or when any part
failed, and `result` raises what it was, so that the process ends and a fresh one asks for the Lease again.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from gpushare.api import names
from gpushare.controller.cache import resync
from gpushare.controller.heartbeats.monitor import HeartbeatMonitor
from gpushare.controller.metrics import FleetSnapshot, export
from gpushare.controller.reconcile import Reconciler
from gpushare.controller.settings import OperatorSettings
from gpushare.controller.writes import MANAGER
from gpushare.kube.client import Kube
from gpushare.kube.coordination.elector import Elector, LeaseLostError
from gpushare.kube.coordination.leadership import Leadership
from gpushare.kube.events.recorder import EventRecorder
from gpushare.process import heap

LOG = logging.getLogger(__name__)
TRIM_SECONDS = 10.0
"""What is free in the heap is given back so often: each plan of a large fleet takes some MiB, for a moment."""


class Operator:
    def __init__(self, kube: Kube, settings: OperatorSettings, connect: Callable[[], Awaitable[Kube]]) -> None:
        """`connect`: opens another connection to the API server, for the Lease alone."""
        self.exported, meters = export(lambda: FleetSnapshot(self.leads, self.reconciler.reports, self._agents()))
        self.reconciler = Reconciler(kube, settings, meters)
        self.leads = False
        """Tells whether the Lease is ours; a process that loses it ends."""
        self.ended = asyncio.Event()
        self.kube = kube
        self._settings = settings
        self._connect = connect
        self._leadership = Leadership(self._election)
        self._task: asyncio.Task[None] | None = None
        kube.guard_writes(self._leadership.check)

    def start(self) -> None:
        self._task = asyncio.create_task(self._leadership.lead(self._work), name="leader")
        self._task.add_done_callback(lambda _: self.ended.set())

    async def stop(self) -> None:
        """Ends all work and gives the Lease back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def result(self) -> None:
        """Raises what ended the operator, LeaseLostError among it; nothing after `stop`."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return
        error = self._task.exception()
        if isinstance(error, BaseExceptionGroup):
            lost, other = error.split(LeaseLostError)
            if lost is not None and other is None:
                raise LeaseLostError("a write was refused, since the Lease is not held any more")
        if error is not None:
            raise error

    @asynccontextmanager
    async def _election(self) -> AsyncIterator[Elector]:
        kube = await self._connect()
        try:
            namespace, identity = self._settings.namespace, self._settings.pod_name
            yield Elector(kube, namespace=namespace, name=names.OPERATOR_LEASE, identity=identity)
        finally:
            await kube.close()

    def _agents(self) -> dict[str, bool]:
        """The nodes, and whether the agent of each reports. Nodes of which that is not known yet, or that have none,
        are left out."""
        nodes = self.reconciler.cache.gpu_nodes.objects.values()
        return {
            node.name: not node.silence
            for node in nodes
            if node.agent_reporting is not None and not self._without_agent(node.name)
        }

    def _without_agent(self, node: str) -> bool:
        known = self.reconciler.cache.nodes.get(node)
        return known is not None and known.without_agent

    async def _work(self) -> None:
        """Runs until cancelled; an error in any part ends all."""
        self.leads = True
        cache = self.reconciler.cache
        watches = cache.watches(self.kube, self._settings.namespace)
        async with asyncio.TaskGroup() as tasks:

            def start(work: Coroutine[Any, Any, None], name: str) -> None:
                tasks.create_task(work, name=name)

            for watch in watches:
                start(watch.run(), str(watch))
            await resync.resync(self.kube, cache)
            for watch in watches:
                await watch.synced.wait()
            LOG.info("the fleet is known; planning starts")
            # What is kept of the fleet stays. Every full collection would look at all of it, and find nothing.
            gc.collect()
            gc.freeze()
            start(self.reconciler.run(), "reconcile")
            settings = self._settings
            monitor = HeartbeatMonitor(
                self.kube, settings.namespace, settings.pod_name, cache.gpu_nodes, self._without_agent
            )
            start(monitor.run(), "heartbeats")
            start(resync.keep_resyncing(self.kube, cache), "resync")
            start(heap.keep_trimming(TRIM_SECONDS), "trim")
            if self._settings.certificates == "SelfSigned":
                from gpushare.controller.webhook_certificates import keep

                recorder = EventRecorder(self.kube, MANAGER, settings.pod_name)
                start(keep.run(self.kube, settings, recorder), "certificates")
