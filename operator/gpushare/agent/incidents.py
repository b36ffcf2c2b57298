"""Records events about incidents: faults, now and while no agent ran, duplicate allocations, and refused attaches.

Guarantees: before this node's pods are known, the notes of an earlier agent are neither compared nor replaced.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpushare.agent.attach.arrivals import BrokerFiles
from gpushare.agent.attach.refusals import RefusalReports
from gpushare.agent.faults.downtime import Handover, downtime_events
from gpushare.agent.faults.reports import FaultReports
from gpushare.agent.kubelet.duplicates import DuplicateAllocations
from gpushare.agent.state import AgentState
from gpushare.api.gpunode import ShareName
from gpushare.kube.events import Event
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.wire import RefusedAttach
from gpushare.nvml.types import Xid

LOG = logging.getLogger(__name__)


class IncidentReporter:
    def __init__(
        self,
        state: AgentState,
        record: Callable[[Event], None],
        proc: Path,
        count_refused: Callable[[ShareName, RefusedAttach, int], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`record`: takes an event and never waits. `count_refused`: as `NodeMeters` has it. `wall`: seconds since
        1970.
        """
        self._state = state
        self._record = record
        self._wall = wall
        self._faults = FaultReports(state.node)
        self._duplicates = DuplicateAllocations()
        self._handover = Handover(state.settings.root, proc)
        self._brokers = BrokerFiles()
        self._count_refused = count_refused
        self._refusals = RefusalReports(state.node, state.clock())

    def xid(self, xid: Xid) -> None:
        """Pods without a slot now are not suspects: asks for a reading of the kubelet."""
        self._faults.add_xid(xid, self._state.clock())
        self._state.kubelet_due.set()

    async def follow_attaches(self) -> None:
        """Reads what the attach brokers have written: who attached, and who was refused."""
        state = self._state
        if state.pods.synced.is_set():
            self._read_brokers()
            state.follow_arrivals()

    def _read_brokers(self) -> None:
        state, pods = self._state, pods_by_cgroup_uid(self._state.pods.objects.values())
        self._refusals.keep(state.on_disk)
        for broker in self._brokers.changed(item.directory for item in state.on_disk.values()):
            state.arrived(broker)
            for new in self._refusals.update(broker, state.on_disk[broker.uuid].wanted.share, pods):
                if new.count:
                    self._count_refused(new.share, new.reason, new.count)
                for event in new.events:
                    self._record(event)

    async def report(self) -> None:
        """Suspects of a fault are those that the latest broker.json leaves."""
        await self.follow_attaches()
        state = self._state
        found = self._faults.update(state.gpu_health(), state.clock())
        if state.kubelet.view is not None:
            found += self._duplicates.look(state.kubelet.view, state.pods.objects.values())
        for event in found:
            self._record(event)

    async def hand_over(self) -> None:
        """Reports what happened while no agent ran, and saves the notes for the next agent."""
        state, now = self._state, self._wall()
        if not state.pods.synced.is_set():
            return
        for uuid, daemon in state.supervised().items():
            before = self._handover.take(uuid)
            if before is not None:
                ended = self._handover.ended(uuid, before.clients)
                pods = pods_by_cgroup_uid(state.pods.objects.values())
                for event in downtime_events(state.node, uuid, before, daemon, ended, pods, now):
                    LOG.warning("%s", event.note)
                    self._record(event)
            self._handover.save(uuid, daemon, state.observed.get(uuid), now)
