"""One turn of the agent's main loop: decide on every GPU, then apply what differs.

Guarantees: a tick never waits for the driver. Without an answer of the API server no GPU is given back. Nothing is
offered before the kubelet was read. Nothing is written where nothing differs. A GPU whose files cannot be written takes
no pods, and holds up no other. What was decided is published once in a turn, before anything is offered by it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from gpushare.agent.attach.files import GrantFiles
from gpushare.agent.attach.grants import closed
from gpushare.agent.dra.driver import ClaimDelivery
from gpushare.agent.gather import DecisionGatherer
from gpushare.agent.kubelet.plugins import DevicePlugins
from gpushare.agent.podresources.holdings import KubeletView
from gpushare.agent.readings import Readings, Wakeups
from gpushare.agent.reconcile import daemon_files
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import (
    DecisionInput,
    Decisions,
    GpuAssessment,
    GpuDecision,
    LatestDecisions,
    assess,
    decide,
)
from gpushare.agent.reconcile.gates import Gates
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.reconcile.offers import GpuOffer
from gpushare.agent.settings import AgentSettings
from gpushare.agent.status.status import foreign_holders
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import ForeignHolder, Uuid

NOT_SHOWN = (
    "clients see the whole GPU's memory: clients.memory.reportedTotal Grant needs CDI, which this node's containers do "
    "not get (chart value cdi)"
)
NO_CLASS = (
    "no client has a class, so none gives way: clients.classes needs CDI, which this node's containers do not get "
    "(chart value cdi)"
)
NO_QUEUE = (
    "who waits for a place is told no position and cannot be interrupted, and nobody is ended after idleAfter: "
    "clients.queue needs CDI, which this node's containers do not get (chart value cdi)"
)

Assessed = Mapping[Uuid, GpuAssessment]
Problems = Mapping[Uuid, str]


class Tick:
    """`ended_at`: when the last turn ended, or the agent said that it still starts; CLOCK_BOOTTIME seconds."""

    def __init__(
        self,
        settings: AgentSettings,
        readings: Readings,
        gatherer: DecisionGatherer,
        gates: Gates,
        lifecycle: Lifecycle,
        plugins: DevicePlugins,
        delivery: ClaimDelivery,
        latest: LatestDecisions,
        clock: Callable[[], float],
        wakeups: Wakeups,
    ) -> None:
        """`clock`: CLOCK_BOOTTIME seconds."""
        self._settings = settings
        self._readings = readings
        self._gatherer = gatherer
        self._gates = gates
        self._lifecycle = lifecycle
        self._plugins = plugins
        self._delivery = delivery
        self._latest = latest
        self._clock = clock
        self._wakeups = wakeups
        self._grants = GrantFiles()
        self._settled: KubeletView | None = None
        self._started_at = self.ended_at = clock()

    def still_starting(self) -> None:
        """No turn is due: the agent waits for the API server."""
        self.ended_at = self._clock()

    async def run(self) -> None:
        self._settle_allocations()
        given = self._gatherer.gather()
        assessed = assess(given)
        self._gatherer.remember_verified(given, assessed)
        steps = self._advance_gpus(assessed)
        self._put_back_untaken(given, assessed)
        self._write_grants(assessed)
        gates = self._gates.apply(assessed, self._readings.inventory.views)
        decisions = decide(given, assessed, gates, self._notes(assessed, steps))
        self._latest.publish(decisions)
        await self._apply_offers(decisions)
        await self._offer_to_claims(decisions)
        self.ended_at = self._clock()
        self._wakeups.report.set()

    def _settle_allocations(self) -> None:
        """Ends the pending allocations that the latest reading of the kubelet shows."""
        view = self._readings.kubelet.view
        if view is not None and view is not self._settled:
            self._plugins.settle(view)
        self._settled = view

    def _advance_gpus(self, assessed: Assessed) -> dict[Uuid, str]:
        """What each GPU waits for, or why its last step failed."""
        foreign = self._foreign_holders(assessed)
        waits = {uuid: self._lifecycle.advance(item, foreign) for uuid, item in assessed.items()}
        self._lifecycle.forget(assessed.keys())
        return waits

    def _foreign_holders(self, assessed: Assessed) -> list[ForeignHolder] | None:
        """Pods that hold whole GPUs of this node; None: not known yet, or no GPU is about to be taken."""
        pods = self._readings.cache.known_pods()
        if pods is None or not any(item.plan.stage is GpuStage.TAKE for item in assessed.values()):
            return None
        view = self._readings.kubelet.view
        own = {resource for resource, _ in self._readings.directories.whole_names}
        return foreign_holders(pods, own, view.nvidia_claims if view is not None else ())

    def _put_back_untaken(self, given: DecisionInput, assessed: Assessed) -> None:
        if given.assignments is None:
            return
        for uuid, directory in daemon_files.untaken(self._settings.root).items():
            known = assessed.get(uuid)
            if known is None or known.plan.stage is not GpuStage.TAKE:
                self._lifecycle.put_back(directory)

    def _write_grants(self, assessed: Assessed) -> None:
        """Writes them before the gates open: a container finds its grant when it starts."""
        why_closed = {uuid: closed(item.readiness) or _shut(item) for uuid, item in assessed.items()}
        self._grants.update(self._readings.directories.shared, why_closed, self._readings.part_holders())
        self._gatherer.remember_shut(self._grants.closed())

    def _notes(self, assessed: Assessed, steps: Problems) -> dict[Uuid, str]:
        """What the status says of each GPU beside its readiness: the first that there is."""
        unread = self._readings.claims.unread
        claims = f"which claims are prepared cannot be read: {unread}" if unread else ""
        return {uuid: steps[uuid] or claims or self._unseen(item) for uuid, item in assessed.items()}

    def _unseen(self, item: GpuAssessment) -> str:
        """What containers do not see that they should, or why the kubelet does not see the GPU; empty: nothing."""
        view_known = item.plan.uuid in self._readings.inventory.views
        if not self._readings.devices.by_cdi and item.readiness.takes_clients and view_known:
            share = self._readings.cache.shares.get(item.plan.share)
            no_class = NO_CLASS if share is None or share.queue is None else NO_QUEUE
            missing = {no_class: item.plan.has_classes, NOT_SHOWN: item.plan.shows_grant}
            if any(missing.values()):
                return "; ".join(text for text, lacks in missing.items() if lacks)
        resource = item.plan.offered_as
        problem = self._plugins.problem(resource) if item.taken is not None else ""
        return f"{resource} cannot be offered to the kubelet: {problem}" if problem else ""

    async def _apply_offers(self, decisions: Decisions) -> None:
        given, readings = decisions.given, self._readings
        patient = self._clock() - self._started_at < self._settings.intervals.patience
        if given.kubelet is None or (patient and not readings.cache.informed):
            return
        offers: dict[str, list[GpuOffer]] = {}
        for decision in decisions.gpus.values():
            resource = decision.plan.offered_as
            if decision.taken is not None and resource not in given.names_taken and not self._is_claimed(decision):
                offers.setdefault(resource, []).append(decision.offer)
        problem = readings.devices.problem() or readings.devices.daemon_problem()
        changed = await self._plugins.apply(offers, mps=bool(readings.inventory.views) and not problem)
        closed = {offer.uuid for items in offers.values() for offer in items if not offer.accepting}
        closed |= {uuid for uuid, gpu in given.whole.items() if gpu.resource in given.names_taken}
        if self._gatherer.remember_withdrawn(closed) or changed:
            self._wakeups.kubelet.set()  # a reading confirms what is offered now

    def _is_claimed(self, decision: GpuDecision) -> bool:
        """Whether the GPU's share is delivered by claims; of an unknown share, whether a claim holds a part of it."""
        if decision.share is not None:
            return decision.share.by_claims
        return (decision.plan.share, decision.plan.uuid) in self._readings.claims.holdings()

    async def _offer_to_claims(self, decisions: Decisions) -> None:
        if not self._readings.cache.informed:
            return
        await self._delivery.offer(tuple(_claimable(decisions.gpus.values())))
        closed = self._delivery.closed()
        if closed is not None:
            self._gatherer.remember_closed(closed)


def _shut(item: GpuAssessment) -> str:
    """Why nobody gets a place, although the GPU serves: a new client would hold up the new MPS pod. By this reason the
    broker has patience with who comes meanwhile, and who waits for a place goes on waiting.
    """
    waits = item.plan.replaces_pod and item.plan.has_queue
    why = f"the MPS pod of GpuShare {item.plan.share} is about to be replaced"
    return f"{DaemonReason.PENDING.value}: {why}" if waits else ""


def _claimable(decisions: Collection[GpuDecision]) -> Iterator[GpuDecision]:
    for decision in decisions:
        if decision.files is not None and decision.share is not None and decision.share.by_claims:
            yield decision
