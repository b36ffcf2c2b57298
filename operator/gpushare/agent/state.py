"""AgentState: all that one agent knows and has decided. It owns every value that outlives a turn of a loop.

Guarantees: its loops and the tick change it, everything else only reads it. Assignments that were read once stay until
the API server shows others.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpushare.agent.attach.arrivals import ArrivalLog
from gpushare.agent.attach.grants import PartHolders
from gpushare.agent.dra.claims import WITHOUT_CDI, ClaimableGpu
from gpushare.agent.dra.prepared import PreparedClaims
from gpushare.agent.dra.users import uses
from gpushare.agent.faults.reports import GpuHealth, gpu_health
from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.kubelet.plugins import DevicePlugins, PluginFactory
from gpushare.agent.node_cache import NodeCache
from gpushare.agent.observe.granted import Reserved, granted_parts, reserved
from gpushare.agent.observe.unused import RunningPart, UnusedParts, running_parts
from gpushare.agent.observe.usage import Reading, TakenGpu, UsageSources
from gpushare.agent.observe.violations import Enforcer, UsageMonitor
from gpushare.agent.podresources.holdings import (
    ContainerName,
    KubeletView,
    ShareGpu,
    Slots,
    WholeNames,
    merged_holdings,
)
from gpushare.agent.podresources.reader import KubeletReader, PodResourcesSource
from gpushare.agent.reconcile import daemon_files, whole_gpus
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.daemon_changes import DaemonChanges
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import DecisionInput, GpuDecision, decide
from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.metrics import NodeSnapshot
from gpushare.agent.terminate.after_fault import GpuFault, faults_of
from gpushare.agent.terminate.max_wait import ExpiredGpu
from gpushare.agent.terminate.shortage import ShortageMonitor
from gpushare.api.gpunode import Assignment, ShareName, Uuid
from gpushare.grant.model import Grant, context_need_mib
from gpushare.kube.client import Kube
from gpushare.kube.pods import full_name, pods_by_cgroup_uid
from gpushare.mps.files import ModelFiles
from gpushare.mps.wire import BrokerState, DaemonState
from gpushare.nvml.types import Nvml

LOG = logging.getLogger(__name__)

APART = 0.75
"""Of the interval of observation: a reading that was taken early judges nobody."""
ALIVE_SECONDS = 60.0
"""A tick that is overdue for so long does not come any more."""
LATE_SECONDS = 10.0
"""While a tick is overdue for so long, no heartbeat says that the agent works."""
REFUSED_SECONDS = 15.0
"""While the API server takes no status for so long, no heartbeat says that what it has is current."""


class AgentState:
    """`tick_due`, `report_due`, `gpus_due`, `kubelet_due`, `observe_due`: each starts the next turn of its loop."""

    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        nvml: Nvml,
        pod_resources: PodResourcesSource,
        plugins: PluginFactory,
        enforcer: Enforcer,
        shortages: ShortageMonitor,
        clock: Callable[[], float],
        proc: Path,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self.settings = settings
        self.node = settings.node
        self.clock = clock
        self.tick_due, self.report_due = asyncio.Event(), asyncio.Event()
        self.gpus_due, self.kubelet_due = asyncio.Event(), asyncio.Event()
        self.observe_due = asyncio.Event()

        self.cache = NodeCache(kube, self.node, self.tick_due.set)
        self.cache.follow_pods(self.kubelet_due.set)
        self.assignments: tuple[Assignment, ...] | None = None
        """None: not read yet."""
        self.generation = 0
        """Of the GpuNode that `assignments` were read from."""

        self.devices = Devices(settings)
        self.inventory = Inventory(nvml, clock, proc)
        self.kubelet = KubeletReader(pod_resources, clock, self.cache.known_pods, self._read_whole)
        self.usage = UsageMonitor(clock, enforcer, proc, settings.intervals.clear, settings.intervals.observe * APART)
        self.shortages = shortages
        self.reserved: dict[ShareGpu, Reserved] = {}
        """What containers hold of the GPUs of shares whose clients may borrow."""
        self.parts: tuple[RunningPart, ...] = ()
        """Running containers with a part of a shared GPU, at the last observation."""
        self.unused: UnusedParts | None = None
        """None until the GPUs were observed once."""
        self.plugins = DevicePlugins(plugins)
        self.claims = PreparedClaims(settings.cdi_dir)
        self.files = ModelFiles()
        """What agent, supervisors and brokers have written in the GPUs' directories."""
        self.on_disk: dict[Uuid, DaemonFiles] = self._read_on_disk()
        """The GPUs taken that are shared: those with an MPS daemon."""
        self.whole: dict[Uuid, WholeGpu] = {}
        """The GPUs taken that are given whole."""

        self._arrivals = ArrivalLog()
        self._early_due = False
        self._early_at = -math.inf
        self.decisions: dict[Uuid, GpuDecision] = {}
        self.decided_on: DecisionInput | None = None
        """The input of the latest decision that was carried out."""
        self.reported = False
        """Whether the API server has taken a status once with all that is known at the start."""
        self.unreported_since: float | None = None
        """Since when the API server takes no status of this agent; None: it has the latest, or that waits its turn."""
        self.started_at = self.ticked_at = clock()
        self._servers: dict[Uuid, tuple[int | None, float]] | None = None
        self._daemon_changes = DaemonChanges(self.files)
        self._verified_at: dict[ShareGpu, float] = {}
        self._withdrawn_at: dict[Uuid, float] = {}
        self._closed_since: dict[Uuid, float] = {}

    # What the loops read

    async def poll_gpus(self) -> None:
        await self.inventory.poll()
        self.tick_due.set()
        self.observe_due.set()

    async def poll_kubelet(self) -> None:
        previous = self.kubelet.view
        await self.kubelet.poll()
        view = self.kubelet.view
        if view is not None and view is not previous:
            self.plugins.settle(view)
            self.tick_due.set()

    async def observe(self) -> None:
        """Reads who uses the GPUs; findings, and who uses none, follow. Not before the first decision, and not without
        pods, shares and claims.
        """
        if self.decided_on is None or self.claims.unread or not self.cache.complete:
            return
        places, claimed = self._places()
        sources = UsageSources(
            self.inventory.views,
            self._taken_gpus(),
            self.cache.pods.objects.values(),
            self.cache.shares,
            places,
            claimed,
        )
        readings = await self.usage.observe(sources, self.cache.published_findings)
        now = datetime.now(UTC)
        if self.unused is None:
            node = self.cache.gpu_node()
            self.unused = UnusedParts(node.status.unused if node is not None else (), now)
        each = {container: (place,) for container, place in places.items()}
        self.parts = tuple(running_parts(self.cache.pods.objects.values(), each))
        whole = running_parts(self.cache.pods.objects.values(), self._whole_holders())
        self.unused.update(self.observed, (*self.parts, *whole), now)
        self._observe_shortages(readings, places, claimed, now)

    def _observe_shortages(
        self,
        readings: Collection[Reading],
        places: Mapping[ContainerName, ShareGpu],
        claimed: Mapping[ContainerName, Grant],
        now: datetime,
    ) -> None:
        lending = {name: share for name, share in self.cache.shares.items() if share.limits_memory is not None}
        parts = list(granted_parts(self.cache.pods.objects.values(), places, claimed, lending)) if lending else []
        self.reserved = reserved(parts)
        unused = {item.part.container for item in self.unused.found} if self.unused is not None else set()
        waiting: Counter[Uuid] = Counter()
        for container, (_, uuid), grant in parts:
            if container in unused:
                waiting[uuid] += context_need_mib(grant.threads)
        taken = {uuid: item.wanted.share for uuid, item in self.on_disk.items()}
        self.shortages.observe(readings, taken, waiting, self.cache.shares, self.cache.published_borrowers, now)

    def follow_daemons(self) -> None:
        """Decides at once about what a supervisor or a broker reports between two ticks."""
        if self._daemon_changes.any(item.directory for item in self.on_disk.values()):
            self.tick_due.set()

    def arrived(self, broker: BrokerState) -> None:
        """An attach broker has written its state."""
        self._arrivals.keep(self.on_disk)
        self._early_due |= self._arrivals.update(broker, self.clock())

    def follow_arrivals(self) -> None:
        """Asks NVML at once who has attached."""
        if self._early_due and self.clock() - self._early_at >= self.settings.intervals.early:
            self._early_due, self._early_at = False, self.clock()
            self.gpus_due.set()

    def still_starting(self) -> None:
        """No tick is due: the agent waits for the API server."""
        self.ticked_at = self.clock()

    # What a tick decides

    def decide(self) -> DecisionInput:
        """Reads the disk and the GpuNode's spec, and decides anew on every GPU."""
        self._read_spec()
        self.claims.read()
        given = self._decision_input()
        self.decisions = decide(given)
        share_gpus = {(item.plan.share, uuid): item.readiness for uuid, item in self.decisions.items()}
        before = {share_gpu: at for share_gpu, at in self._verified_at.items() if share_gpu in share_gpus}
        verified = {share_gpu: given.now for share_gpu, readiness in share_gpus.items() if readiness.takes_clients}
        self._verified_at = {**before, **verified}
        return given

    def carried_out(self, given: DecisionInput) -> None:
        """The tick that decided on `given` is over."""
        self.decided_on = given
        self.ticked_at = self.clock()
        self.report_due.set()

    def withdrew(self, closed: set[Uuid]) -> bool:
        """The kubelet is offered no free slots of the GPUs `closed`. True: of one of them it was until now."""
        now = self.clock()
        more = bool(closed - self._withdrawn_at.keys())
        self._withdrawn_at = {uuid: self._withdrawn_at.get(uuid, now) for uuid in closed}
        return more

    def closed_to_claims(self, closed: set[Uuid]) -> None:
        """The ResourceSlice offers the GPUs `closed` to no claim."""
        now = self.clock()
        self._closed_since = {uuid: self._closed_since.get(uuid, now) for uuid in closed}

    def _read_on_disk(self) -> dict[Uuid, DaemonFiles]:
        """At the start: departures are guarded at once, while the first readings of GPUs and kubelet take seconds."""
        try:
            return daemon_files.read_all(self.settings.root, self.files)
        except OSError:
            return {}  # the first tick says so

    def _read_spec(self) -> None:
        node = self.cache.gpu_node()
        if node is not None and node.spec.assignments is not None:
            self.generation = node.metadata.generation
            self.assignments = tuple(node.spec.assignments)
        self.on_disk = daemon_files.read_all(self.settings.root, self.files)
        self._read_whole()

    def _read_whole(self) -> WholeNames:
        self.whole = whole_gpus.read_all(self.settings.root, self.files)
        return self.whole_names

    def _decision_input(self) -> DecisionInput:
        now = self.clock()
        return DecisionInput(
            now=now,
            assignments=self.assignments,
            shares=self.cache.shares,
            on_disk=self.on_disk,
            views=self.inventory.views,
            kubelet=self.kubelet.view,
            pending=merged_holdings(self.plugins.pending(self.whole_names), self.claims.holdings()),
            server_since=self._server_since(now),
            withdrawn_at=self._withdrawn_at,
            client_ceiling=self.inventory.client_ceiling,
            brief_seconds=self.settings.intervals.brief,
            verified_at=self._verified_at,
            closed_since=self._closed_since,
            undeliverable=self.devices.problem(),
            daemonless=self.devices.daemon_problem(),
            modes=self.settings.compute_mode_policy,
            claims_known=not self.claims.unread,
            whole=self.whole,
            names_taken=self._names_taken(),
            full="" if daemon_files.has_room(self.settings.root) else str(self.settings.root),
        )

    def _names_taken(self) -> frozenset[str]:
        """A kubelet has one plugin for each name. A name that we serve, or by which a container has a GPU of ours, is
        ours to serve; any other only if the kubelet knows no device of it but ours.
        """
        view = self.kubelet.view
        own: dict[str, set[Uuid]] = {}
        for resource, uuid in self.whole_names:
            own.setdefault(resource, set()).add(uuid)
        return frozenset(
            resource
            for resource, uuids in own.items()
            if view is not None
            and not self.plugins.serves(resource)
            and not uuids & view.held_ids.get(resource, frozenset())
            and view.allocatable_ids.get(resource, frozenset()) - uuids
        )

    def _server_since(self, now: float) -> dict[Uuid, float]:
        """When each server_pid was first read. Readiness needs an NVML reading taken later: asks for one at once.

        A server that was there before this agent needs no later one: a restart must not close its gate.
        """
        previous = self._servers
        self._servers = {}
        for uuid, item in self.on_disk.items():
            pid = item.server_pid
            known = previous.get(uuid, (None, 0.0)) if previous is not None else (pid, 0.0)
            if known[0] != pid:
                self.gpus_due.set()
            self._servers[uuid] = known if known[0] == pid else (pid, now)
        return {uuid: since for uuid, (_, since) in self._servers.items()}

    # What others read

    @property
    def whole_names(self) -> WholeNames:
        return {(gpu.resource, uuid): gpu.share for uuid, gpu in self.whole.items()}

    @property
    def observed(self) -> dict[Uuid, Reading]:
        """Who uses each shared GPU, by the latest reading; without GPUs of which nothing is known now."""
        return self.usage.readings

    @property
    def lends(self) -> bool:
        """Whether a share that has a GPU here lets its clients borrow memory."""
        shares = (self.cache.shares.get(item.wanted.share) for item in self.on_disk.values())
        return any(share is not None and share.limits_memory is not None for share in shares)

    def held(self, share: ShareName, uuid: Uuid) -> Slots:
        """Slots of the share that containers hold on the GPU, with pending ones."""
        listed = self.kubelet.view.held if self.kubelet.view else {}
        return merged_holdings(listed, self.plugins.pending(self.whole_names)).get((share, uuid), frozenset())

    def claims_used(self) -> set[tuple[str, str]] | None:
        """(namespace, name) of each claim that a pod of this node uses; None: that or the kubelet is not known now."""
        if self.kubelet.view is None or self.kubelet.error or not self.cache.pods.synced.is_set():
            return None
        pods = self.cache.pods.objects.values()
        return {(pod["metadata"]["namespace"], use.claim) for pod in pods for use in uses(pod)}

    def claimed_grants(self) -> dict[ContainerName, Grant]:
        """What the prepared claims of this node's containers grant."""
        return self._places()[1]

    def holding(self, view: KubeletView | None) -> dict[ShareGpu, frozenset[str]]:
        """The pods that hold a part of a GPU, as namespace/name."""
        return {**(view.pods() if view else {}), **self.claims.pods(self.cache.pods.objects.values())}

    def part_holders(self) -> PartHolders | None:
        """Who may attach to the GPUs; None until pods, shares, claims and the kubelet's list are known."""
        if self.kubelet.view is None or self.claims.unread or not self.cache.complete:
            return None
        return PartHolders(pods_by_cgroup_uid(self.cache.pods.objects.values()), *self._places(), self.cache.shares)

    def claimable(self) -> Iterator[ClaimableGpu]:
        """The GPUs that shares have here now."""
        for uuid in self.on_disk:
            if uuid in self.decisions:
                decision = self.decisions[uuid]
                readiness = decision.readiness if self.devices.by_cdi else WITHOUT_CDI
                leaving = decision.plan.stage in (GpuStage.LEAVE, GpuStage.STOP)
                yield ClaimableGpu(uuid, self.cache.shares.get(decision.plan.share), readiness, leaving)

    def taken(self) -> list[Uuid]:
        """GPUs that have a daemon.json."""
        return list(self.on_disk)

    def expired(self) -> list[ExpiredGpu]:
        """GPUs taken whose share's maxWait is over; none while this node's pods are not known."""
        if not self.cache.pods.synced.is_set():
            return []  # the clients' pods could not be told
        plans = [self.decisions[uuid].plan for uuid in self.on_disk if uuid in self.decisions]
        return [ExpiredGpu(plan.uuid, plan.share) for plan in plans if plan.ends_clients]

    def gpu_health(self) -> list[GpuHealth]:
        """The health of the GPUs taken, for fault reports."""
        holders: dict[Uuid, set[str]] = {}
        for (_, uuid), pods in self.holding(self.kubelet.view).items():
            holders.setdefault(uuid, set()).update(pods)
        absent = self.kubelet.view.absent if self.kubelet.view else {}
        names = {uid: full_name(pod) for uid, pod in pods_by_cgroup_uid(self.cache.pods.objects.values()).items()}
        return [
            gpu_health(
                decision.readiness,
                item.state,
                self.observed.get(uuid),
                holders.get(uuid, ()),
                absent,
                uuid,
                self._arrivals.attaches(uuid, holders.get(uuid, ()), absent, names),
                names,
            )
            for uuid, decision in self.decisions.items()
            if (item := self.on_disk.get(uuid)) is not None
        ]

    def supervised(self) -> dict[Uuid, DaemonState]:
        """state.json of each GPU that was decided on."""
        found = {uuid: item.state for uuid, item in self.on_disk.items() if uuid in self.decisions}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def faults(self) -> list[GpuFault]:
        """GPUs whose server waits for faulted clients, of known shares."""
        states = {uuid: item.state for uuid, item in self.on_disk.items() if item.state is not None}
        return faults_of(states, self.cache.shares, self.clock())

    def snapshot(self) -> NodeSnapshot:
        """The latest values, for metrics: later ones replace them and change nothing in a snapshot."""
        view, driver = self.kubelet.view, self.inventory.driver
        return NodeSnapshot(
            now=self.clock(),
            simulated=self.inventory.simulated,
            views=self.inventory.views,
            client_ceiling=driver.client_ceiling if driver else None,
            decisions=self.decisions,
            states={uuid: item.state for uuid, item in self.on_disk.items()},
            observed=self.observed,
            attached={uuid: self._arrivals.attached(uuid, _identities(item)) for uuid, item in self.observed.items()},
            findings=self.usage.findings() or (),
            borrowers=self.shortages.borrowers() or (),
            shortages=self.shortages.latest,
            unused={item.part: _seconds_since(item.since) for item in self.unused.found} if self.unused else {},
            nvml_error=self.inventory.error,
            kubelet_error=self.kubelet.error,
            kubelet_read_at=view.started if view else None,
        )

    def unhealthy(self) -> str | None:
        """Why the agent should be restarted; None: it works."""
        age = self.clock() - self.ticked_at
        return f"the last tick was {age:.0f} s ago" if age > ALIVE_SECONDS else None

    def unready(self) -> str | None:
        """What is missing before the agent has reported once; None: nothing."""
        return None if self.reported else "has not yet seen the API, the GPUs and the kubelet"

    def _whole_holders(self) -> dict[ContainerName, list[ShareGpu]]:
        return self.kubelet.view.whole_gpus() if self.kubelet.view else {}

    def _taken_gpus(self) -> dict[Uuid, TakenGpu]:
        """Without those given whole while the kubelet was not read: who may use them is not known."""
        given = self.whole if self.kubelet.view is not None else {}
        holders: dict[Uuid, set[ContainerName]] = {uuid: set() for uuid in given}
        for container, held in self._whole_holders().items():
            for _, uuid in held:
                holders.setdefault(uuid, set()).add(container)
        whole = {uuid: TakenGpu(gpu.share, None, frozenset(holders[uuid])) for uuid, gpu in given.items()}
        return whole | {uuid: TakenGpu(item.wanted.share, item.server_pid) for uuid, item in self.on_disk.items()}

    def _places(self) -> tuple[dict[ContainerName, ShareGpu], dict[ContainerName, Grant]]:
        """Where the containers' slots and claims are, and what the claims grant."""
        slots = self.kubelet.view.share_gpus() if self.kubelet.view else {}
        claimed = self.claims.containers(self.cache.pods.objects.values())
        places = {**slots, **{container: use.share_gpu for container, use in claimed.items()}}
        return places, {container: use.grant for container, use in claimed.items()}

    def not_working(self) -> str | None:
        """Why departures may go unseen or the status be old; None: the agent does its work."""
        now = self.clock()
        age = now - self.ticked_at
        if age > LATE_SECONDS:
            return f"the last tick was {age:.0f} s ago"
        if self.unreported_since is not None and now - self.unreported_since > REFUSED_SECONDS:
            return f"the API server has taken no status for {now - self.unreported_since:.0f} s"
        return self.unready()


def _identities(reading: Reading) -> Iterator[tuple[int, int]]:
    """PID and start time, in ticks, of each process."""
    return ((process.pid, process.started) for usage in reading.usages for process in usage.processes)


def _seconds_since(moment: datetime) -> float:
    """Not below 0, however clocks are set."""
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())
