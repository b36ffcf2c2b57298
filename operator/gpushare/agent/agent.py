"""The node agent: one process per node that gathers, decides purely, and applies what differs, once per tick.

Guarantees: a tick never waits for the driver; without news from the API nothing is given up; nothing is offered before
the kubelet has said what is held; a slot is held from Allocate until a reading of the kubelet shows that its pod has
ended, and free with that reading. When it ends, gates and daemons stay as they are, so clients notice nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gpushare.agent.aio.wake import Wake
from gpushare.agent.dra.driver import ClaimDelivery, Offered
from gpushare.agent.gpus import cdi
from gpushare.agent.hooks import SlotAndClaimHooks
from gpushare.agent.kubelet.holdings import ShareGpu, united
from gpushare.agent.kubelet.reader import PodResourcesSource
from gpushare.agent.plugins import DevicePlugins, PluginFactory
from gpushare.agent.reconcile.decision import DecisionInput, decide
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.reconcile.slots import GpuOffer, MpsHooks, offered_devices
from gpushare.agent.reporting import Reporter
from gpushare.agent.settings import AgentSettings
from gpushare.agent.state import AgentState
from gpushare.agent.status.status import foreign_holders
from gpushare.agent.status.writer import GpuNodeWriter
from gpushare.agent.usage.usage import SharedGpu
from gpushare.agent.usage.violations import Enforcer
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.kube.client import API_ERRORS, NODES, Kube
from gpushare.mps.clock import boot_clock
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
    """`known`: what it knows and has decided."""

    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        nvml: Nvml,
        pod_resources: PodResourcesSource,
        plugins: PluginFactory,
        enforcer: Enforcer,
        clock: Callable[[], float] = boot_clock,
        turned: Callable[[str, float], None] = lambda loop, seconds: None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`turned` is told of each turn of a loop: its name and how many seconds it took."""
        self._settings = settings
        self._kube = kube
        self._clock = clock
        self._turned = turned
        self._wake, self._tell, self._look_at_gpus, self._look_at_kubelet = Wake(), Wake(), Wake(), Wake()
        self._followers: list[Callable[[], None]] = []
        self.known = AgentState(
            settings,
            kube,
            nvml,
            pod_resources,
            enforcer,
            clock,
            proc,
            changed=self._wake.poke,
            pods_changed=self._pods_changed,
            claimed=lambda: self._claims.claims.pods(),
        )
        answers = SlotAndClaimHooks(self.known, lambda: self._serving.promised(), self._look_at_kubelet.poke)
        self._serving = DevicePlugins(plugins, answers.hooks, MpsHooks(answers.mps_edits))
        self._claims = ClaimDelivery(
            kube,
            settings.node,
            (settings.kubelet_dir, settings.cdi_dir),
            answers.claimable,
            self.known.pods_by_uid,
            clock,
            self._wake.poke,
        )
        self._gate = cdi.Gate(settings.cdi_dir)
        self._lifecycle = Lifecycle(
            settings.root,
            self.known.inventory,
            self._gate,
            clock,
            self._gpus_changed,
            lambda: foreign_holders(self.known.pods.objects.values()),
            modes=settings.compute_modes,
        )
        self._reporter = Reporter(
            self.known,
            self._claims,
            GpuNodeWriter(kube, settings.node, clock, settings.status_seconds),
            self._lifecycle,
        )
        self._ticked_at = self._started_at = clock()
        self._servers: dict[Uuid, tuple[int | None, float]] | None = None
        self._verified_at: dict[ShareGpu, float] = {}
        self._withdrawn_at: dict[Uuid, float] = {}

    async def run(self) -> None:
        """Runs until cancelled. Raises what would be a fault of ours."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for reflector in (self.known.nodes, self.known.shares, self.known.pods):
                    tasks.create_task(reflector.run())
                await self._begin()
                tasks.create_task(self._every(NVML_SECONDS, self._look_at_gpus, self._poll_gpus))
                tasks.create_task(self._every(KUBELET_SECONDS, self._look_at_kubelet, self._poll_kubelet))
                tasks.create_task(self._every(OBSERVE_SECONDS, Wake(), self._observe))
                tasks.create_task(self._every(DRIVER_SECONDS, Wake(), self.known.devices.scan))
                tasks.create_task(self._every(TICK_SECONDS, self._wake, self._tick))
                tasks.create_task(self._every(TICK_SECONDS, self._tell, self._reporter.report))
        finally:
            await self._lifecycle.close()
            await self._serving.leave()
            await self._claims.close()

    def follow_pods(self, changed: Callable[[], None]) -> None:
        """`changed` is called at every change of this node's pods."""
        self._followers.append(changed)

    def look_at_kubelet(self) -> None:
        """Who holds what is read now."""
        self._look_at_kubelet.poke()

    def unwell(self) -> str | None:
        age = self._clock() - self._ticked_at
        return f"the last tick was {age:.0f} s ago" if age > ALIVE_SECONDS else None

    def unready(self) -> str | None:
        return None if self._reporter.ready else "has not yet seen the API, the GPUs and the kubelet"

    async def _begin(self) -> None:
        """What every decision needs. The API may be away: what is on disk is then read, kept and not offered."""
        await self._find_runtime()
        await self.known.devices.scan()
        await self.known.inventory.poll()
        await self.known.kubelet.poll()

    async def _find_runtime(self) -> None:
        mode, runtime = self._settings.cdi, ""
        while mode == "Auto" and not runtime:
            try:
                node = await self._kube.get(NODES, self._settings.node)
                runtime = node["status"]["nodeInfo"]["containerRuntimeVersion"]
            except (*API_ERRORS, KeyError) as error:
                LOG.warning("the node's container runtime is not known yet: %s", error)
                self._ticked_at = self._clock()
                await asyncio.sleep(KUBELET_SECONDS)
        self.known.devices.by_cdi = cdi.used(mode, runtime)
        LOG.info("CDI %s: edits travel %s", mode, "by CDI" if self.known.devices.by_cdi else "in Allocate")

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
        await self.known.inventory.poll()
        self._wake.poke()

    async def _poll_kubelet(self) -> None:
        before = self.known.kubelet.view
        await self.known.kubelet.poll()
        view = self.known.kubelet.view
        if view is not None and view is not before:
            self._serving.settle(view)
            self._wake.poke()

    async def _observe(self) -> None:
        known = self.known
        if known.picture is None or not (known.pods.synced.is_set() and known.informed):
            return
        slots = known.kubelet.view.places() if known.kubelet.view else {}
        claimed = self._claims.claims.containers()
        await known.watch.observe(
            known.inventory.views,
            {uuid: SharedGpu(item.wanted.share, item.server_pid) for uuid, item in known.on_disk.items()},
            known.pods.objects.values(),
            known.models(),
            {**slots, **{name: use.place for name, use in claimed.items()}},
            {name: use.grant for name, use in claimed.items()},
            known.findings_told,
        )

    async def _tick(self) -> None:
        picture = self._gather()
        self.known.decisions = decide(picture)
        self._note_verified(picture.now)
        self._apply_to_gpus()
        self._apply_gate()
        await self._apply_offers(picture)
        self._offer_to_claims(picture)
        self.known.picture = picture
        self._tell.poke()
        self._ticked_at = self._clock()

    def _gather(self) -> DecisionInput:
        known = self.known
        known.read_spec()
        now = self._clock()
        return DecisionInput(
            now=now,
            assignments=known.assignments,
            shares=known.models(),
            on_disk=known.on_disk,
            views=known.inventory.views,
            kubelet=known.kubelet.view,
            promised=united(self._serving.promised(), self._claims.claims.holdings()),
            server_since=self._watch_servers(now),
            withdrawn_at=self._withdrawn_at,
            verified_at=self._verified_at,
            closed_since=self._claims.closed_since,
            client_ceiling=known.inventory.client_ceiling,
            undeliverable=known.devices.problem(),
            modes=self._settings.compute_modes,
        )

    def _watch_servers(self, now: float) -> dict[Uuid, float]:
        """Since when each server is known. It is judged by a look that is younger than the news of it; so look at once.

        A server that was there before this agent is judged by the first look: a restart must not close its gate.
        """
        known = self._servers
        self._servers = {}
        for uuid, item in self.known.on_disk.items():
            pid = item.server_pid
            old = known.get(uuid, (None, 0.0)) if known is not None else (pid, 0.0)
            if old[0] != pid:
                self._look_at_gpus.poke()
            self._servers[uuid] = old if old[0] == pid else (pid, now)
        return {uuid: since for uuid, (_, since) in self._servers.items()}

    def _note_verified(self, now: float) -> None:
        places = {(item.plan.share, uuid): item.verdict for uuid, item in self.known.decisions.items()}
        before = {place: at for place, at in self._verified_at.items() if place in places}
        verified = {place: now for place, verdict in places.items() if verdict.takes_clients}
        self._verified_at = {**before, **verified}

    def _apply_to_gpus(self) -> None:
        for uuid, decision in self.known.decisions.items():
            self._lifecycle.advance(decision, self.known.on_disk.get(uuid))
        self._lifecycle.forget(set(self.known.decisions))

    def _apply_gate(self) -> None:
        views = self.known.inventory.views
        decisions = self.known.decisions.items()
        ready = {uuid for uuid, decision in decisions if decision.verdict.takes_clients and uuid in views}
        passable = ready if self.known.devices.by_cdi else set()
        for uuid in self._gate.uuids() - passable:
            self._gate.close(uuid)
        for uuid in passable:
            self._gate.open(uuid, cdi.spec(uuid, self.known.devices.client(views[uuid])))

    async def _apply_offers(self, picture: DecisionInput) -> None:
        patient = self._clock() - self._started_at < PATIENCE_SECONDS
        if picture.kubelet is None or (patient and not self.known.informed):
            return
        offers: dict[ShareName, list[GpuOffer]] = {}
        for uuid in self.known.on_disk:
            if uuid in self.known.decisions and not self._is_claimed(picture, uuid):
                decision = self.known.decisions[uuid]
                offers.setdefault(decision.plan.share, []).append(decision.offer)
        deliverable = bool(self.known.inventory.views) and not self.known.devices.problem()
        changed = await self._serving.apply(
            {share: offered_devices(items) for share, items in offers.items()}, mps=deliverable
        )
        now = self._clock()
        closed = {offer.uuid for items in offers.values() for offer in items if not offer.accepting}
        if changed or closed - self._withdrawn_at.keys():
            self._look_at_kubelet.poke()
        self._withdrawn_at = {uuid: self._withdrawn_at.get(uuid, now) for uuid in closed}

    def _is_claimed(self, picture: DecisionInput, uuid: Uuid) -> bool:
        """Whether the GPU's share is delivered by claims; of one that is not known (yet), whether a claim holds it."""
        share = self.known.decisions[uuid].plan.share
        model = picture.shares.get(share)
        return model.by_claims if model else (share, uuid) in self._claims.claims.holdings()

    def _offer_to_claims(self, picture: DecisionInput) -> None:
        if not self.known.informed:
            return
        offered = []
        for uuid in self.known.on_disk:
            decision = self.known.decisions.get(uuid)
            share = picture.shares.get(decision.plan.share) if decision else None
            if decision is not None and share is not None and share.by_claims:
                offered.append(Offered(decision, share, self.known.inventory.views.get(uuid)))
        self._claims.offer(offered)

    def _pods_changed(self) -> None:
        self._look_at_kubelet.poke()
        self._wake.poke()
        for changed in self._followers:
            changed()

    def _gpus_changed(self) -> None:
        self._look_at_gpus.poke()
        self._wake.poke()
