"""Records what happens on the node as events: containers that got a part of a GPU, faults, now and while no agent ran,
duplicate allocations, attaches that were refused or made with other limits than granted.

Guarantees: before this node's pods are known, the notes of an earlier agent are neither compared nor replaced.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.attach.arrivals import BrokerFiles
from gpushare.agent.attach.refusals import RefusalReports
from gpushare.agent.attach.variables import VariableReports, read_environments, variable_events
from gpushare.agent.faults.downtime import Handover, downtime_events
from gpushare.agent.faults.reports import FaultReports
from gpushare.agent.observe.placement import Placements
from gpushare.agent.podresources.duplicates import DuplicateAllocations
from gpushare.agent.state import AgentState
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.files import read_model
from gpushare.mps.wire import Arrival, GpuGrants, RefusedAttach
from gpushare.nvml.types import Xid

LOG = logging.getLogger(__name__)
ENVIRONMENT_SECONDS = 1.0
MAX_ARRIVED = 64
"""Readings of broker.json whose arrivals wait for a look at their environments."""


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
        self._placements = Placements(datetime.fromtimestamp(wall(), UTC))
        self._handover = Handover(state.settings.root, proc)
        self._brokers = BrokerFiles(state.files)
        self._count_refused = count_refused
        self._refusals = RefusalReports(state.node, state.clock())
        self._variables = VariableReports(state.clock())
        self.arrivals_due = asyncio.Event()
        """Set when `follow_arrivals` has something to do."""
        self._arrived: deque[tuple[Uuid, Sequence[Arrival]]] = deque(maxlen=MAX_ARRIVED)
        self._proc = proc
        self._environments = BlockingCaller("environments of processes that attached", ENVIRONMENT_SECONDS)
        self._problems = LogOnChange(LOG)

    def xid(self, xid: Xid) -> None:
        """Pods without a slot now are not suspects: asks for a reading of the kubelet."""
        self._faults.add_xid(xid, self._state.clock())
        self._state.kubelet_due.set()

    async def follow_arrivals(self) -> None:
        """Looks with what those attached whom `read_brokers` found."""
        while self._arrived:
            await self._look_at_variables(*self._arrived.popleft())

    def read_brokers(self) -> None:
        """Reads what the attach brokers have written: who attached, and who was refused."""
        state = self._state
        if not state.cache.pods.synced.is_set():
            return
        self._refusals.keep(state.on_disk)
        self._variables.keep(state.on_disk)
        changed = self._brokers.changed(item.directory for item in state.on_disk.values())
        pods = pods_by_cgroup_uid(state.cache.pods.objects.values()) if changed else {}
        for broker in changed:
            state.arrived(broker)
            if arrivals := self._variables.new(broker):
                self._arrived.append((broker.uuid, arrivals))
                self.arrivals_due.set()
            for new in self._refusals.update(broker, state.on_disk[broker.uuid].wanted.share, pods):
                if new.count:
                    self._count_refused(new.share, new.reason, new.count)
                for event in new.events:
                    self._record(event)
        state.follow_arrivals()

    async def _look_at_variables(self, uuid: Uuid, arrivals: Sequence[Arrival]) -> None:
        item = self._state.on_disk.get(uuid)
        grants = read_model(item.directory.grants, GpuGrants).value if item is not None else None
        if item is None or grants is None:
            return
        try:
            environments = await self._environments.call(read_environments, arrivals, self._proc)
            self._problems.clear("environments")
        except HungError as error:
            self._problems.log("limit variables are not looked at: %s", error, key="environments")
            return
        pods = pods_by_cgroup_uid(self._state.cache.pods.objects.values())
        for event in variable_events(arrivals, environments, grants, item.wanted.share, pods):
            self._record(event)

    async def report(self) -> None:
        """Suspects of a fault are those that the latest broker.json leaves."""
        self.read_brokers()
        state = self._state
        found = self._faults.update(state.gpu_health(), state.clock())
        if state.kubelet.view is not None:
            found += self._duplicates.look(state.kubelet.view, state.cache.pods.objects.values())
        found += self._placements.look(state.parts, state.cache.pods_by_uid(), state.cache.shares, state.claimed_grants)
        for event in found:
            self._record(event)

    async def hand_over(self) -> None:
        """Reports what happened while no agent ran, and saves the notes for the next agent."""
        state, now = self._state, self._wall()
        if not state.cache.pods.synced.is_set():
            return
        for uuid, daemon in state.supervised().items():
            before = self._handover.take(uuid)
            if before is not None:
                ended = self._handover.ended(uuid, before.clients)
                pods = pods_by_cgroup_uid(state.cache.pods.objects.values())
                for event in downtime_events(state.node, uuid, before, daemon, ended, pods, now):
                    LOG.warning("%s", event.note)
                    self._record(event)
            self._handover.save(uuid, daemon, state.observed.get(uuid), now)
