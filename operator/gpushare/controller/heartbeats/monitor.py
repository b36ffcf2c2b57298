"""Reads the agents' Leases, and writes into GpuNodes which agents report and which are silent.

The Leases are listed rather than watched: a list that fails is noticed, whereas a watch that stalls would make every
agent look silent. 1,000 agents cost 46 ms of CPU for each list, 5,000 cost 210 ms: about as much as to watch them.

Guarantees: a renewal wakes no round of the reconcile loop and leads to no write; only an agent that falls silent or
returns does. What is silent by the API stays so after a restart, until a renewal is seen.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal

from gpushare.api import names
from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import GpuNode
from gpushare.api.timestamps import format_timestamp
from gpushare.controller.heartbeats.ages import POLL_SECONDS, HeartbeatAges
from gpushare.controller.heartbeats.conditions import Silence, conditions, is_announced, is_contradicted, is_due
from gpushare.controller.writes import MANAGER
from gpushare.kube.cache.store import Store
from gpushare.kube.client import API_ERRORS, GPU_NODES, Kube, KubeError, Object
from gpushare.kube.coordination.heartbeat import LEASE_SECONDS, SELECTOR, renewals
from gpushare.kube.events.event import Event, reference
from gpushare.kube.events.recorder import EventRecorder
from gpushare.kube.resources import LEASES
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)
AT_ONCE = 8


class HeartbeatMonitor:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        instance: str,
        gpu_nodes: Store[GpuNode],
        without_agent: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`namespace`: gpushare's own. `instance`: who reports the events. `gpu_nodes`: kept current by a watch.
        `without_agent`: whether the agent keeps away from a node, since the driver there is replaced.

        `clock`: seconds, monotonic. `now`: the time of day, for conditions.
        """
        self._kube = kube
        self._namespace = namespace
        self._gpu_nodes = gpu_nodes
        self._without_agent = without_agent
        self._clock = clock
        self._now = now
        self._ages = HeartbeatAges()
        self._corrected: dict[str, float] = {}
        """When a silent agent's own conditions were last written."""
        self._recorder = EventRecorder(kube, MANAGER, instance, clock)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._problems = LogOnChange(LOG)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(POLL_SECONDS)

    async def turn(self) -> None:
        """One reading, and the writes that it leads to. Errors are logged; what was not written waits for the next."""
        try:
            # From the API server's cache: `resourceVersion=0` asks for no agreement of etcd's members.
            listed = await self._kube.list_all(LEASES, self._namespace, labelSelector=SELECTOR, resourceVersion="0")
        except API_ERRORS as error:
            self._problems.log("the agents' heartbeats cannot be read: %s", error or type(error).__name__)
            return
        self._problems.clear()
        known = {name: node for (_, name), node in self._gpu_nodes.objects.items()}
        self._ages.observe(known, renewals(listed.get("items") or ()), self._clock())
        self._corrected = {name: at for name, at in self._corrected.items() if name in known}
        self._problems.keep(["", *known])
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await asyncio.gather(*(self._write(name) for name in self._due(known.values())))
        except TimeoutError:
            LOG.warning("not all agents' heartbeats were written within %g s, again at the next turn", POLL_SECONDS)

    def _due(self, nodes: Iterable[GpuNode]) -> list[str]:
        return [node.name for node in nodes if self._is_due(node)]

    def _is_due(self, node: GpuNode) -> bool:
        reporting = self._ages.is_reporting(node.name)
        if reporting is None:
            return False
        if is_due(node, reporting):
            return True
        # An agent that cannot renew its Lease may still write its status: no race of writes with it.
        rested = self._clock() - self._corrected.get(node.name, -LEASE_SECONDS) >= LEASE_SECONDS
        return not reporting and is_contradicted(node) and rested

    async def _write(self, name: str) -> None:
        reporting = self._ages.is_reporting(name) is True
        async with self._slots:
            try:
                current = await self._kube.get(GPU_NODES, name)
                answer = await self._patch(current, reporting)
            except API_ERRORS as error:
                # A conflict is an agent that writes at the same time, and a GpuNode may be gone: the next turn knows.
                if not (isinstance(error, KubeError) and (error.conflict or error.not_found)):
                    self._problems.log("conditions of GpuNode %s not written: %s", name, error, key=name)
                return
            self._problems.clear(name)
            self._gpu_nodes.observe(answer)
            if not reporting:
                self._corrected[name] = self._clock()
            if is_announced(current, reporting):
                self._record(current, reporting)
                await self._recorder.flush()

    async def _patch(self, current: Object, reporting: bool) -> Object:
        """Writes the whole list, since nothing else can be merged, with the version that it was made from."""
        name = current["metadata"]["name"]
        before = (current.get("status") or {}).get("conditions") or []
        desired = conditions(before, reporting, self._silence(name), format_timestamp(self._now()))
        body = {
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "status": {"conditions": desired},
        }
        return await self._kube.patch(GPU_NODES, name, body, manager=MANAGER, subresource="status")

    def _silence(self, node: str) -> Silence:
        return Silence(self._ages.last_renewal(node), sent_away=self._without_agent(node))

    def _record(self, gpu_node: Object, reporting: bool) -> None:
        regarding = reference(gpu_node, names.API_VERSION, "GpuNode")
        if reporting:
            note = "the agent renews its heartbeat again: what it reports is current, departures are guarded"
            event = Event(regarding, "Normal", EventReason.AGENT_REPORTING, "Observe", note, happened=True)
        else:
            silence = self._silence(gpu_node["metadata"]["name"])
            kind: Literal["Normal", "Warning"] = "Normal" if silence.sent_away else "Warning"
            key = "sent away" if silence.sent_away else "silent"
            event = Event(regarding, kind, EventReason.AGENT_SILENT, "Observe", silence.message, key=key, happened=True)
        self._recorder.record(event)
