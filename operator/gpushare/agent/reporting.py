"""Publishes what the agent knows: the GpuNode's status, the ResourceSlice, and events about faults and duplicates."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.faults.downtime import Handover, downtime_events
from gpushare.agent.faults.reports import FaultReports
from gpushare.agent.kubelet.duplicates import DuplicateAllocations
from gpushare.agent.kubelet.holdings import ShareGpu, Slots, united
from gpushare.agent.reconcile.decision import DecisionInput, GpuDecision
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.state import AgentState
from gpushare.agent.status.status import GpuFacts, NodeFacts, build
from gpushare.agent.status.writer import GpuNodeWriter
from gpushare.api.timestamps import format_timestamp
from gpushare.kube.events import Event
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.nvml.types import Xid

LOG = logging.getLogger(__name__)


class StatusReporter:
    def __init__(self, state: AgentState, delivery: ClaimDelivery, writer: GpuNodeWriter, lifecycle: Lifecycle) -> None:
        self._state = state
        self._delivery = delivery
        self._writer = writer
        self._lifecycle = lifecycle

    async def report(self) -> None:
        """Writes the ResourceSlice and the GpuNode's status where they differ; creates the GpuNode."""
        state, given = self._state, self._state.decided_on
        if state.informed and given is not None:
            await self._delivery.publish(state.inventory.driver, by_cdi=state.devices.by_cdi)
        node = state.gpu_node()
        if node is None:
            if state.nodes.synced.is_set():
                await self._writer.create()
            return
        if given is None:
            return
        await self._writer.write(build(self._facts(given), node.status), node)
        state.reported = state.informed and state.pods.synced.is_set() and given.kubelet is not None

    def _facts(self, given: DecisionInput) -> NodeFacts:
        state = self._state
        return NodeFacts(
            generation=state.generation,
            agent_version=version("gpushare"),
            simulated=state.inventory.simulated,
            modes=state.settings.compute_modes,
            driver=state.inventory.driver,
            views=state.inventory.views,
            original_modes={uuid: item.original_mode for uuid, item in state.on_disk.items()},
            gpus=[self._gpu_facts(decision) for decision in state.decisions.values()],
            held=_held(given),
            holding=state.holding(given.kubelet),
            assignments=state.assignments or (),
            pods=list(state.pods.objects.values()),
            findings=state.usage.findings(),
            nvml_error=state.inventory.error,
            kubelet_error=state.kubelet.error,
            now=format_timestamp(datetime.now(UTC)),
        )

    def _gpu_facts(self, decision: GpuDecision) -> GpuFacts:
        uuid = decision.plan.uuid
        item = self._state.on_disk.get(uuid)
        note = self._lifecycle.notes.get(uuid, "")
        return GpuFacts(decision.plan, decision.readiness, item.state if item else None, decision.drained, note)


def _held(given: DecisionInput) -> dict[ShareGpu, Slots] | None:
    return None if given.kubelet is None else united(given.kubelet.held, given.pending)


class EventReporter:
    """Records events about what befell the GPUs, now and while no agent ran, and about slots that were given twice."""

    def __init__(
        self,
        state: AgentState,
        record: Callable[[Event], None],
        proc: Path,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`record`: takes an event and never waits. `wall`: seconds since 1970."""
        self._state = state
        self._record = record
        self._wall = wall
        self._faults = FaultReports(state.node)
        self._duplicates = DuplicateAllocations()
        self._handover = Handover(state.settings.root, proc)

    def xid(self, xid: Xid) -> None:
        """Pods without a slot now are not suspects: asks for a reading of the kubelet."""
        self._faults.add_xid(xid, self._state.clock())
        self._state.kubelet_due.set()

    async def report(self) -> None:
        state = self._state
        found = self._faults.update(state.gpu_health(), state.clock())
        if state.kubelet.view is not None:
            found += self._duplicates.look(state.kubelet.view, state.pods.objects.values())
        for event in found:
            self._record(event)

    async def hand_over(self) -> None:
        """Reports what happened while no agent ran, and notes what the next agent has to know.

        Before the pods are known nothing is compared, and no note of an earlier agent is replaced.
        """
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
