"""Records what happens on the node as events: containers that got a part of a GPU, faults, now and while no agent ran,
duplicate allocations, attaches that were refused or made with other limits than granted.

One loop follows what the attach brokers write and reports; it also asks for an early reading of NVML when a process
attaches.

Guarantees: before this node's pods are known, the notes of an earlier agent are neither compared nor replaced.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpushare.agent.aio.blocking import BlockingCaller, HungError
from gpushare.agent.attach.arrivals import ArrivalLog, BrokerFiles
from gpushare.agent.attach.class_reports import ClassReports
from gpushare.agent.attach.refusals import RefusalReports
from gpushare.agent.attach.restarts import BrokerRestarts
from gpushare.agent.attach.variables import VariableReports, read_environments, variable_events
from gpushare.agent.attach.waits import wait_events
from gpushare.agent.faults.downtime import Handover, downtime_events
from gpushare.agent.faults.reports import FaultReports, GpuHealth, gpu_health
from gpushare.agent.observation import Observer
from gpushare.agent.observe.activity import ActivityLog, ContainerActivity
from gpushare.agent.observe.placement import Placements
from gpushare.agent.podresources.duplicates import DuplicateAllocations
from gpushare.agent.readings import Readings, Wakeups
from gpushare.agent.reconcile.decision import LatestDecisions
from gpushare.agent.settings import AgentSettings
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.events.event import Event
from gpushare.kube.pods import full_name, pods_by_cgroup_uid
from gpushare.messages.log_on_change import LogOnChange
from gpushare.mps.files import ModelFiles, read_model
from gpushare.mps.wire import Arrival, DaemonState, GpuGrants, RefusedAttach
from gpushare.nvml.types import Xid

LOG = logging.getLogger(__name__)
ENVIRONMENT_SECONDS = 1.0
MAX_XIDS = 256
"""Xids that wait for the next report, with their times."""
MAX_ARRIVED = 64
"""Readings of broker.json whose arrivals wait for a look at their environments."""


class IncidentReporter:
    def __init__(
        self,
        settings: AgentSettings,
        readings: Readings,
        latest: LatestDecisions,
        observer: Observer,
        files: ModelFiles,
        wakeups: Wakeups,
        clock: Callable[[], float],
        record: Callable[[Event], None],
        proc: Path,
        count_refused: Callable[[ShareName, RefusedAttach, int], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds. `record`: takes an event and never waits. `count_refused`: as `NodeMeters`
        has it. `wall`: seconds since 1970.
        """
        self._node = settings.node
        self._every = settings.intervals
        self._readings = readings
        self._latest = latest
        self._observer = observer
        self._wakeups = wakeups
        self._clock = clock
        self._record = record
        self._wall = wall
        self._arrival_log = ArrivalLog()
        self._early_due = False
        self._early_at = self._reported_at = -math.inf
        self._faults = FaultReports(settings.node)
        self._duplicates = DuplicateAllocations()
        self._placements = Placements(datetime.fromtimestamp(wall(), UTC))
        self._handover = Handover(settings.root, proc)
        self._brokers = BrokerFiles(files)
        self._count_refused = count_refused
        self._refusals = RefusalReports(settings.node, clock())
        self._restarts = BrokerRestarts(settings.node)
        self._variables = VariableReports(clock())
        self._classes = ClassReports()
        self._activity = ActivityLog()
        self.arrivals_due = asyncio.Event()
        """Set when `follow_arrivals` has something to do."""
        self._xids: deque[tuple[Xid, float]] = deque(maxlen=MAX_XIDS)
        self._arrived: deque[tuple[Uuid, Sequence[Arrival]]] = deque(maxlen=MAX_ARRIVED)
        self._proc = proc
        self._environments = BlockingCaller("environments of processes that attached", ENVIRONMENT_SECONDS)
        self._problems = LogOnChange(LOG)

    async def follow(self) -> None:
        """One turn of the loop: looks at what the brokers have written and, every `Intervals.report`, reports. Suspects
        of a fault are those that the latest broker.json leaves.
        """
        self._read_brokers()
        if self._clock() - self._reported_at >= self._every.report:
            self._reported_at = self._clock()
            self._report()
            self._hand_over()

    def xid(self, xid: Xid) -> None:
        """Keeps it for the next report. Pods without a slot now are not suspects: asks for a reading of the kubelet."""
        self._xids.append((xid, self._clock()))
        self._wakeups.kubelet.set()

    async def follow_arrivals(self) -> None:
        """Looks at the limit variables of the processes that attached."""
        while self._arrived:
            await self._look_at_variables(*self._arrived.popleft())

    def attached(self, uuid: Uuid, processes: Iterable[tuple[int, int]]) -> dict[int, float]:
        """When processes of the GPU attached, see `ArrivalLog`."""
        return self._arrival_log.attached(uuid, processes)

    def activity(self) -> list[ContainerActivity]:
        """What the containers with a class did on the GPUs taken."""
        shares = {uuid: item.wanted.share for uuid, item in self._readings.directories.shared.items()}
        pods = pods_by_cgroup_uid(self._readings.cache.pods.objects.values())
        return list(self._activity.containers(shares, pods))

    def gpu_health(self) -> list[GpuHealth]:
        """The health of the GPUs taken, for fault reports."""
        readings, observed = self._readings, self._observer.observed
        view, pods = readings.kubelet.view, readings.cache.pods.objects.values()
        holders: dict[Uuid, set[str]] = {}
        for (_, uuid), names in readings.holding(view).items():
            holders.setdefault(uuid, set()).update(names)
        absent = view.absent if view else {}
        pod_names = {uid: full_name(pod) for uid, pod in pods_by_cgroup_uid(pods).items()}
        return [
            gpu_health(
                decision.readiness,
                item.state,
                observed.get(uuid),
                holders.get(uuid, ()),
                absent,
                uuid,
                self._arrival_log.attaches(uuid, holders.get(uuid, ()), absent, pod_names),
                pod_names,
            )
            for uuid, decision in self._latest.gpus.items()
            if (item := readings.directories.shared.get(uuid)) is not None
        ]

    def _read_brokers(self) -> None:
        """Who attached, and who was refused."""
        readings, shared = self._readings, self._readings.directories.shared
        if not readings.cache.pods.synced.is_set():
            return
        self._refusals.keep(shared)
        self._restarts.keep(shared)
        self._variables.keep(shared)
        self._classes.keep(shared)
        changed = self._brokers.changed(item.directory for item in shared.values())
        pods = pods_by_cgroup_uid(readings.cache.pods.objects.values()) if changed else {}
        if changed:
            self._activity.keep(shared, pods)
        for broker in changed:
            self._activity.update(broker, self._clock())
            for event in self._classes.update(broker, shared[broker.uuid].wanted.share, pods):
                self._record(event)
            for event in wait_events(broker, shared[broker.uuid].wanted.share, pods, self._clock()):
                self._record(event)
            self._arrival_log.keep(shared)
            self._early_due |= self._arrival_log.update(broker, self._clock())
            if arrivals := self._variables.new(broker):
                self._arrived.append((broker.uuid, arrivals))
                self.arrivals_due.set()
            for event in self._restarts.update(broker, shared[broker.uuid].wanted.share):
                self._record(event)
            for new in self._refusals.update(broker, shared[broker.uuid].wanted.share, pods):
                if new.count:
                    self._count_refused(new.share, new.reason, new.count)
                for event in new.events:
                    self._record(event)
        self._ask_nvml()

    def _ask_nvml(self) -> None:
        """Asks at once who has attached."""
        if self._early_due and self._clock() - self._early_at >= self._every.early:
            self._early_due, self._early_at = False, self._clock()
            self._wakeups.gpus.set()

    async def _look_at_variables(self, uuid: Uuid, arrivals: Sequence[Arrival]) -> None:
        item = self._readings.directories.shared.get(uuid)
        grants = read_model(item.directory.grants, GpuGrants).value if item is not None else None
        if item is None or grants is None:
            return
        try:
            environments = await self._environments.call(read_environments, arrivals, self._proc)
            self._problems.clear("environments")
        except HungError as error:
            self._problems.log("limit variables are not looked at: %s", error, key="environments")
            return
        pods = pods_by_cgroup_uid(self._readings.cache.pods.objects.values())
        for event in variable_events(arrivals, environments, grants, item.wanted.share, pods):
            self._record(event)

    def _report(self) -> None:
        readings = self._readings
        while self._xids:
            self._faults.add_xid(*self._xids.popleft())
        events = self._faults.update(self.gpu_health(), self._clock())
        if readings.kubelet.view is not None:
            events += self._duplicates.look(readings.kubelet.view, readings.cache.pods.objects.values())
        events += self._placements.look(
            self._observer.parts, readings.cache.pods_by_uid(), readings.cache.shares, readings.claimed_grants
        )
        for event in events:
            self._record(event)

    def _hand_over(self) -> None:
        """Reports what happened while no agent ran, and saves the notes for the next agent."""
        cache, now = self._readings.cache, self._wall()
        if not cache.pods.synced.is_set():
            return
        for uuid, daemon in self._supervised().items():
            before = self._handover.take(uuid)
            if before is not None:
                ended = self._handover.ended(uuid, before.clients)
                pods = pods_by_cgroup_uid(cache.pods.objects.values())
                for event in downtime_events(self._node, uuid, before, daemon, ended, pods, now):
                    LOG.warning("%s", event.note)
                    self._record(event)
            self._handover.save(uuid, daemon, self._observer.observed.get(uuid), now)

    def _supervised(self) -> dict[Uuid, DaemonState]:
        """state.json of each GPU that was decided on."""
        states = {uuid: item.state for uuid, item in self._readings.directories.shared.items()}
        return {uuid: state for uuid, state in states.items() if state is not None and uuid in self._latest.gpus}
