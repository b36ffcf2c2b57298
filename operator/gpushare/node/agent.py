"""The node agent: one process per node that gathers, decides purely, and applies what differs, once per tick.

Guarantees: a tick never waits for the driver; without news from the API nothing is given up; nothing is offered before
the kubelet has said what is held; a slot is held from Allocate until a reading of the kubelet shows that its pod has
ended, and free with that reading. When it ends, gates and daemons stay as they are, so clients notice nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpushare.api.gpunode import Assignment, Finding, GpuNode, ShareName, Uuid
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES, PODS, Kube, Object
from gpushare.kube.reflector import Reflector
from gpushare.mps.clock import boot_clock
from gpushare.mps.wire import DaemonState
from gpushare.node import cdi, daemons
from gpushare.node.assignments import Stage
from gpushare.node.daemons import OnDisk
from gpushare.node.decision import GpuDecision, Picture, decide
from gpushare.node.devices import Devices
from gpushare.node.dra.claims import WITHOUT_CDI, Gpu
from gpushare.node.dra.driver import ClaimDelivery, Offered
from gpushare.node.edits import ContainerEdits
from gpushare.node.expiry import Expired
from gpushare.node.fault_reports import Look, look_at
from gpushare.node.gpunode_writer import FAILURES, GpuNodeWriter
from gpushare.node.holdings import KubeletView, Place, Slots, united
from gpushare.node.inventory import Inventory
from gpushare.node.kubelet import KubeletReader, Source
from gpushare.node.late import Room
from gpushare.node.lifecycle import Lifecycle
from gpushare.node.lingerers import Fault, faults_of
from gpushare.node.metrics import NodeSnapshot
from gpushare.node.serving import PluginFactory, Serving
from gpushare.node.settings import AgentSettings
from gpushare.node.shares import Shares
from gpushare.node.slots import GpuOffer, MpsHooks, SlotHooks, offered_devices, slot_edits
from gpushare.node.status import GpuFacts, NodeFacts, build, foreign_holders
from gpushare.node.usage import Reading
from gpushare.node.verdict import Verdict
from gpushare.node.wake import Wake
from gpushare.node.watch import Enforcer, Watch
from gpushare.nvml.types import Nvml

LOG = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]

TICK_SECONDS = 1.0
"""state.json is looked at this often."""
DEBOUNCE_SECONDS = 0.05
NVML_SECONDS = 2.0
KUBELET_SECONDS = 5.0
OBSERVE_SECONDS = 2.0
DRIVER_SECONDS = 60.0
ALIVE_SECONDS = 60.0
"""A loop that has not ticked for so long does not come back by itself."""
PATIENCE_SECONDS = 15.0
"""A restarted agent waits this long for the API before it registers with what it knows: held slots alone."""


class Agent:
    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        nvml: Nvml,
        pod_resources: Source,
        plugins: PluginFactory,
        enforcer: Enforcer,
        clock: Callable[[], float] = boot_clock,
        turned: Callable[[str, float], None] = lambda loop, seconds: None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`turned` is told of each turn of a loop: its name and how many seconds it took."""
        self.devices = Devices(settings)
        self.inventory = Inventory(nvml, clock)
        self.decisions: dict[Uuid, GpuDecision] = {}
        self.ticked_at = self._started_at = clock()
        self._settings = settings
        self._kube = kube
        self._clock = clock
        self._turned = turned
        self._wake = Wake()
        self._tell = Wake()
        self._look_at_gpus = Wake()
        self._look_at_kubelet = Wake()
        node = settings.node
        self.nodes = Reflector(kube, GPU_NODES, self._wake.poke, fieldSelector=f"metadata.name={node}")
        self.shares = Reflector(kube, GPU_SHARES, self._wake.poke)
        self.pods = Reflector(kube, PODS, self._pods_changed, fieldSelector=f"spec.nodeName={node}")
        self._gate = cdi.Gate(settings.cdi_dir)
        self._kubelet = KubeletReader(pod_resources, clock, self._known_pods)
        self._lifecycle = Lifecycle(
            settings.root,
            self.inventory,
            self._gate,
            clock,
            self._gpus_changed,
            lambda: foreign_holders(self.pods.objects.values()),
            modes=settings.compute_modes,
        )
        self._watch = Watch(clock, enforcer, proc)
        self._serving = Serving(plugins, self._hooks, MpsHooks(self._mps_edits))
        self._claims = ClaimDelivery(
            kube,
            node,
            (settings.kubelet_dir, settings.cdi_dir),
            self._claimable,
            self.pods_by_uid,
            clock,
            self._wake.poke,
        )
        self._writer = GpuNodeWriter(kube, node, clock)
        self._parsed = Shares()
        self._assignments: tuple[Assignment, ...] | None = None
        self._generation = 0
        self._on_disk: dict[Uuid, OnDisk] = {}
        self._servers: dict[Uuid, tuple[int | None, float]] | None = None
        self._picture: Picture | None = None
        self._withdrawn_at: dict[Uuid, float] = {}
        self._ready = False
        self._followers: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Runs until cancelled. Raises what would be a fault of ours."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in (self.nodes, self.shares, self.pods):
                    tasks.create_task(reflector.run())
                await self._begin()
                tasks.create_task(self._every(NVML_SECONDS, self._look_at_gpus, self._poll_gpus))
                tasks.create_task(self._every(KUBELET_SECONDS, self._look_at_kubelet, self._poll_kubelet))
                tasks.create_task(self._every(OBSERVE_SECONDS, Wake(), self._observe))
                tasks.create_task(self._every(DRIVER_SECONDS, Wake(), self.devices.scan))
                tasks.create_task(self._every(TICK_SECONDS, self._wake, self._tick))
                tasks.create_task(self._every(TICK_SECONDS, self._tell, self._report))
        finally:
            await self._lifecycle.close()
            await self._serving.leave()
            await self._claims.close()

    @property
    def observed(self) -> dict[Uuid, Reading]:
        """Who uses each shared GPU, by the latest reading; a GPU of which nothing is known now is not there."""
        return self._watch.readings

    @property
    def kubelet_view(self) -> KubeletView | None:
        """The latest plausible reading; None before the first."""
        return self._kubelet.view

    def pods_by_uid(self) -> dict[str, Object]:
        """This node's pods, as far as they are known."""
        return {pod["metadata"]["uid"]: pod for pod in self.pods.objects.values()}

    def taken(self) -> list[Uuid]:
        """GPUs that have a daemon of ours."""
        return list(self._on_disk)

    def expired(self) -> list[Expired]:
        """GPUs with a daemon of ours whose clients are to be ended."""
        plans = [self.decisions[uuid].plan for uuid in self._on_disk if uuid in self.decisions]
        return [Expired(plan.uuid, plan.share) for plan in plans if plan.ends_clients]

    def fault_looks(self) -> list[Look]:
        """What is known now of each GPU with a daemon of ours, for reports of faults."""
        holders: dict[Uuid, set[str]] = {}
        for (_, uuid), pods in self._holding(self._kubelet.view).items():
            holders.setdefault(uuid, set()).update(pods)
        return [
            look_at(decision.verdict, self._on_disk[uuid].state, self.observed.get(uuid), holders.get(uuid, ()), uuid)
            for uuid, decision in self.decisions.items()
            if uuid in self._on_disk
        ]

    def supervised(self) -> dict[Uuid, DaemonState]:
        """The word of each supervisor of a GPU that was decided on."""
        found = {uuid: item.state for uuid, item in self._on_disk.items() if uuid in self.decisions}
        return {uuid: state for uuid, state in found.items() if state is not None}

    def faults(self) -> list[Fault]:
        """GPUs whose server waits for clients that a fatal fault has hit, of shares that are known."""
        states = {uuid: item.state for uuid, item in self._on_disk.items() if item.state is not None}
        return faults_of(states, self._parsed.read(self.shares.objects), self._clock())

    def follow_pods(self, changed: Callable[[], None]) -> None:
        """`changed` is called at every change of this node's pods."""
        self._followers.append(changed)

    def snapshot(self) -> NodeSnapshot:
        """What is known now, for metrics: every value in it is replaced by later ones, never changed."""
        view, driver = self._kubelet.view, self.inventory.driver
        return NodeSnapshot(
            now=self._clock(),
            simulated=self.inventory.simulated,
            views=self.inventory.views,
            client_ceiling=driver.client_ceiling if driver else None,
            decisions=self.decisions,
            states={uuid: item.state for uuid, item in self._on_disk.items()},
            observed=self.observed,
            findings=self._watch.findings() or (),
            nvml_error=self.inventory.error,
            kubelet_error=self._kubelet.error,
            kubelet_read_at=view.started if view else None,
        )

    def unwell(self) -> str | None:
        age = self._clock() - self.ticked_at
        return f"the last tick was {age:.0f} s ago" if age > ALIVE_SECONDS else None

    def unready(self) -> str | None:
        return None if self._ready else "has not yet seen the API, the GPUs and the kubelet"

    async def _begin(self) -> None:
        """What every decision needs. The API may be away: what is on disk is then read, kept and not offered."""
        await self._find_runtime()
        await self.devices.scan()
        await self.inventory.poll()
        await self._kubelet.poll()

    async def _find_runtime(self) -> None:
        mode, runtime = self._settings.cdi, ""
        while mode == "Auto" and not runtime:
            try:
                node = await self._kube.get(NODES, self._settings.node)
                runtime = node["status"]["nodeInfo"]["containerRuntimeVersion"]
            except (*FAILURES, KeyError) as error:
                LOG.warning("the node's container runtime is not known yet: %s", error)
                self.ticked_at = self._clock()
                await asyncio.sleep(KUBELET_SECONDS)
        self.devices.by_cdi = cdi.used(mode, runtime)
        LOG.info("CDI %s: edits travel %s", mode, "by CDI" if self.devices.by_cdi else "in Allocate")

    async def _every(self, seconds: float, wake: Wake, work: Work) -> None:
        loop = work.__name__.strip("_")
        while True:
            began = self._clock()
            try:
                await work()
            except OSError as error:
                LOG.error("%s failed, trying again: %s", loop, error)
            self._turned(loop, self._clock() - began)
            await wake.wait(seconds)
            await asyncio.sleep(DEBOUNCE_SECONDS)

    async def _poll_gpus(self) -> None:
        await self.inventory.poll()
        self._wake.poke()

    async def _poll_kubelet(self) -> None:
        before = self._kubelet.view
        await self._kubelet.poll()
        view = self._kubelet.view
        if view is not None and view is not before:
            self._serving.settle(view)
            self._wake.poke()

    async def _observe(self) -> None:
        if self._picture is None or not (self.pods.synced.is_set() and self._informed()):
            return
        slots, claimed = self._kubelet.view.places() if self._kubelet.view else {}, self._claims.claims.containers()
        await self._watch.look(
            self.inventory.views,
            self._on_disk,
            self.pods.objects.values(),
            self._parsed.read(self.shares.objects),
            {**slots, **{name: use.place for name, use in claimed.items()}},
            {name: use.grant for name, use in claimed.items()},
            self._findings_told,
        )

    def _findings_told(self) -> list[Finding]:
        node = self._gpu_node()
        return node.status.findings if node is not None else []

    async def _tick(self) -> None:
        picture = self._gather()
        self.decisions = decide(picture)
        self._apply_to_gpus()
        self._apply_gate()
        await self._apply_offers(picture)
        self._offer_to_claims(picture)
        self._picture = picture
        self._tell.poke()
        self.ticked_at = self._clock()

    def _gather(self) -> Picture:
        node = self._gpu_node()
        if node is not None:
            self._generation = node.metadata.generation
            if node.spec.assignments is not None:
                self._assignments = tuple(node.spec.assignments)
        self._on_disk = daemons.read_all(self._settings.root)
        now = self._clock()
        return Picture(
            now=now,
            assignments=self._assignments,
            shares=self._parsed.read(self.shares.objects),
            on_disk=self._on_disk,
            views=self.inventory.views,
            kubelet=self._kubelet.view,
            promised=united(self._serving.promised(), self._claims.claims.holdings()),
            server_since=self._watch_servers(now),
            withdrawn_at=self._withdrawn_at,
            closed_since=self._claims.closed_since,
            client_ceiling=self.inventory.client_ceiling,
            undeliverable=self.devices.problem(),
            modes=self._settings.compute_modes,
        )

    def _watch_servers(self, now: float) -> dict[Uuid, float]:
        """Since when each server is known. It is judged by a look that is younger than the news of it; so look at once.

        A server that was there before this agent is judged by the first look: a restart must not close its gate.
        """
        known = self._servers
        self._servers = {}
        for uuid, item in self._on_disk.items():
            pid = item.server_pid
            old = known.get(uuid, (None, 0.0)) if known is not None else (pid, 0.0)
            if old[0] != pid:
                self._look_at_gpus.poke()
            self._servers[uuid] = old if old[0] == pid else (pid, now)
        return {uuid: since for uuid, (_, since) in self._servers.items()}

    def _apply_to_gpus(self) -> None:
        for uuid, decision in self.decisions.items():
            self._lifecycle.advance(decision, self._on_disk.get(uuid))
        self._lifecycle.forget(set(self.decisions))

    def _apply_gate(self) -> None:
        views = self.inventory.views
        ready = {uuid for uuid, decision in self.decisions.items() if decision.verdict.takes_clients and uuid in views}
        passable = ready if self.devices.by_cdi else set()
        for uuid in self._gate.uuids() - passable:
            self._gate.close(uuid)
        for uuid in passable:
            self._gate.open(uuid, cdi.spec(uuid, self.devices.client(views[uuid])))

    def _informed(self) -> bool:
        return self.shares.synced.is_set() and self.nodes.synced.is_set()

    async def _apply_offers(self, picture: Picture) -> None:
        patient = self._clock() - self._started_at < PATIENCE_SECONDS
        if picture.kubelet is None or (patient and not self._informed()):
            return
        offers: dict[ShareName, list[GpuOffer]] = {}
        for uuid in self._on_disk:
            if uuid in self.decisions and not self._is_claimed(picture, uuid):
                decision = self.decisions[uuid]
                offers.setdefault(decision.plan.share, []).append(decision.offer)
        deliverable = bool(self.inventory.views) and not self.devices.problem()
        changed = await self._serving.apply(
            {share: offered_devices(items) for share, items in offers.items()}, mps=deliverable
        )
        now = self._clock()
        closed = {offer.uuid for items in offers.values() for offer in items if not offer.accepting}
        if changed or closed - self._withdrawn_at.keys():
            self._look_at_kubelet.poke()
        self._withdrawn_at = {uuid: self._withdrawn_at.get(uuid, now) for uuid in closed}

    def _is_claimed(self, picture: Picture, uuid: Uuid) -> bool:
        """Whether the GPU's share is delivered by claims; of one that is not known (yet), whether a claim holds it."""
        share = self.decisions[uuid].plan.share
        model = picture.shares.get(share)
        return model.by_claims if model else (share, uuid) in self._claims.claims.holdings()

    def _offer_to_claims(self, picture: Picture) -> None:
        if not self._informed():
            return
        offered = []
        for uuid in self._on_disk:
            decision = self.decisions.get(uuid)
            share = picture.shares.get(decision.plan.share) if decision else None
            if decision is not None and share is not None and share.by_claims:
                offered.append(Offered(decision, share, self.inventory.views.get(uuid)))
        self._claims.offer(offered)

    def _claimable(self) -> Iterator[Gpu]:
        """By the latest shares, not by the last tick's."""
        shares = self._parsed.read(self.shares.objects)
        for uuid in self._on_disk:
            if uuid in self.decisions:
                decision = self.decisions[uuid]
                verdict = decision.verdict if self.devices.by_cdi else WITHOUT_CDI
                leaving = decision.plan.stage in (Stage.LEAVE, Stage.STOP)
                yield Gpu(uuid, shares.get(decision.plan.share), verdict, leaving)

    async def _report(self) -> None:
        """Tells the API. A loop of its own: a slow API server must not hold up the gate."""
        if self._informed() and self._picture is not None:
            await self._claims.publish(self.inventory.driver, by_cdi=self.devices.by_cdi)
        node, picture = self._gpu_node(), self._picture
        if node is None:
            if self.nodes.synced.is_set():
                await self._writer.create()
            return
        if picture is None:
            return
        facts = NodeFacts(
            # Of the assignments that were decided on, not of those that came since.
            generation=self._generation,
            agent_version=version("gpushare"),
            simulated=self.inventory.simulated,
            modes=self._settings.compute_modes,
            driver=self.inventory.driver,
            views=self.inventory.views,
            original_modes={uuid: item.original_mode for uuid, item in self._on_disk.items()},
            gpus=[self._gpu_facts(decision) for decision in self.decisions.values()],
            held=self._held(picture),
            holding=self._holding(picture.kubelet),
            assignments=self._assignments or (),
            pods=list(self.pods.objects.values()),
            findings=self._watch.findings(),
            nvml_error=self.inventory.error,
            kubelet_error=self._kubelet.error,
            now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        await self._writer.write(build(facts, node.status), node)
        self._ready = self._informed() and self.pods.synced.is_set() and picture.kubelet is not None

    def _holding(self, view: KubeletView | None) -> dict[Place, frozenset[str]]:
        """The pods that hold a part of a GPU, as namespace/name."""
        return {**(view.pods() if view else {}), **self._claims.claims.pods()}

    def _gpu_facts(self, decision: GpuDecision) -> GpuFacts:
        uuid = decision.plan.uuid
        item = self._on_disk.get(uuid)
        note = self._lifecycle.notes.get(uuid, "")
        return GpuFacts(decision.plan, decision.verdict, item.state if item else None, decision.drained, note)

    def _held(self, picture: Picture) -> dict[tuple[ShareName, Uuid], Slots] | None:
        return None if picture.kubelet is None else united(picture.kubelet.held, picture.promised)

    def _gpu_node(self) -> GpuNode | None:
        found = next(iter(self.nodes.objects.values()), None)
        return None if found is None else GpuNode.model_validate(found)

    def _known_pods(self) -> list[Object] | None:
        return list(self.pods.objects.values()) if self.pods.synced.is_set() else None

    def _pods_changed(self) -> None:
        self._look_at_kubelet.poke()
        self._wake.poke()
        for changed in self._followers:
            changed()

    def _gpus_changed(self) -> None:
        self._look_at_gpus.poke()
        self._wake.poke()

    def _hooks(self, share: ShareName) -> SlotHooks:
        return SlotHooks(share, self._slot_edits, self._slot_verdict, self._slot_room)

    def _decision(self, share: ShareName, uuid: Uuid) -> GpuDecision:
        decision = self.decisions.get(uuid)
        if decision is None or decision.plan.share != share or uuid not in self._on_disk:
            raise LookupError(f"GPU {uuid} of node {self._settings.node} does not belong to GpuShare {share} any more")
        return decision

    def _slot_edits(self, share: ShareName, uuid: Uuid) -> ContainerEdits:
        if self._decision(share, uuid).plan.stage is Stage.STOP:
            raise LookupError(f"GPU {uuid} of node {self._settings.node} is being given back by GpuShare {share}")
        view = self.inventory.views.get(uuid)
        if view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {self._settings.node}")
        self._look_at_kubelet.poke()
        model = self._parsed.read(self.shares.objects).get(share)
        return slot_edits(model, self.devices.allocated(view), view.info.memory_mib)

    def _slot_verdict(self, share: ShareName, uuid: Uuid) -> Verdict:
        return self._decision(share, uuid).verdict

    def _slot_room(self, share: ShareName, uuid: Uuid) -> Room:
        """By the latest share and reading, not by the last tick's."""
        view = self._kubelet.view
        held = united(view.held if view else {}, self._serving.promised()).get((share, uuid), frozenset())
        model = self._parsed.read(self.shares.objects).get(share)
        return Room(held, model.spec.clients.per_gpu if model else None)

    def _mps_edits(self) -> ContainerEdits:
        problem = self.devices.problem()
        if problem:
            raise LookupError(problem)
        return self.devices.mps(self.inventory.views)
