"""One turn of the agent's main loop: decide on every GPU, then apply what differs.

Guarantees: a tick never waits for the driver. Without an answer of the API server no GPU is given back. Nothing is
offered before the kubelet was read. Nothing is written where nothing differs. A GPU whose files cannot be written takes
no pods, and holds up no other.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from gpushare.agent.attach.files import GrantFiles
from gpushare.agent.dra.driver import ClaimDelivery, Offered
from gpushare.agent.gpus import cdi
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.hooks import MeteredHooks, MpsHooks, ShareHooks, WholeHooks
from gpushare.agent.kubelet.service import Hooks
from gpushare.agent.reconcile import daemon_files
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import DecisionInput
from gpushare.agent.reconcile.lifecycle import Lifecycle
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.reconcile.slots import GpuOffer, offered_devices
from gpushare.agent.state import AgentState
from gpushare.agent.status.meters import NodeMeters
from gpushare.agent.status.status import foreign_holders
from gpushare.api import names
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpunode import Uuid
from gpushare.messages.log_on_change import LogOnChange

LOG = logging.getLogger(__name__)

NOT_SHOWN = (
    "clients see the whole GPU's memory: clients.memory.reportedTotal Grant needs CDI, which this node's containers do "
    "not get (chart value cdi)"
)


class Tick:
    def __init__(
        self, state: AgentState, gate: cdi.Gate, lifecycle: Lifecycle, delivery: ClaimDelivery, meters: NodeMeters
    ) -> None:
        self._state = state
        self._gate = gate
        self._lifecycle = lifecycle
        self._delivery = delivery
        self._meters = meters
        self._grants = GrantFiles()
        self._problems = LogOnChange(LOG)

    async def run(self) -> None:
        given = self._state.decide()
        self._advance_gpus()
        self._write_grants()
        self._apply_gates()
        await self._apply_offers(given)
        self._offer_to_claims(given)
        self._state.carried_out(given)

    def hooks(self, resource: str) -> Hooks:
        """Slots and whole GPUs are timed; users do not wait for our own MPS pods."""
        if resource == names.MPS_RESOURCE:
            return MpsHooks(self._state)
        share = names.share_of_resource(resource)
        hooks = WholeHooks(resource, self._state) if share is None else ShareHooks(share, self._state)
        return MeteredHooks(hooks, self._meters)

    def _advance_gpus(self) -> None:
        state = self._state
        own = {resource for resource, _ in state.whole_names}
        takes = any(decision.plan.stage is GpuStage.TAKE for decision in state.decisions.values())
        pods = state.cache.known_pods() if takes else None
        foreign = None if pods is None else foreign_holders(pods, own)
        for uuid, decision in state.decisions.items():
            self._lifecycle.advance(decision, state.on_disk.get(uuid) or state.whole.get(uuid), foreign)
            if state.claims.unread:
                note = f"which claims are prepared cannot be read: {state.claims.unread}"
                self._lifecycle.notes.setdefault(uuid, note)
        self._lifecycle.forget(set(state.decisions))
        for uuid, directory in daemon_files.untaken(state.settings.root).items():
            known = state.decisions.get(uuid)
            if state.assignments is not None and (known is None or known.plan.stage is not GpuStage.TAKE):
                self._lifecycle.put_back(directory)

    def _write_grants(self) -> None:
        """Before the gates open: a container finds its grant when it starts."""
        state = self._state
        readiness = {uuid: decision.readiness for uuid, decision in state.decisions.items()}
        self._grants.update(state.on_disk, readiness, state.part_holders())

    def _apply_gates(self) -> None:
        state, views = self._state, self._state.inventory.views
        ready = {uuid for uuid, item in state.decisions.items() if item.readiness.takes_clients and uuid in views}
        passable = ready if state.devices.by_cdi else set()
        for uuid in ready - passable:
            if state.decisions[uuid].plan.shows_grant:
                self._lifecycle.notes.setdefault(uuid, NOT_SHOWN)
        for uuid in self._known_gates() | passable:
            try:
                if uuid in passable:
                    self._gate.open(uuid, cdi.spec(uuid, self._edits(views[uuid])))
                else:
                    self._gate.close(uuid)
                self._problems.clear(uuid)
            except OSError as error:
                self._problems.log("CDI spec of GPU %s: %s", uuid, error, key=uuid)
                self._withdraw(uuid, f"its CDI spec cannot be changed: {error}")

    def _edits(self, view: GpuView) -> ContainerEdits:
        """OSError: the front libraries, by which a container sees its grant, cannot be delivered."""
        uuid, state = view.info.uuid, self._state
        shared = state.on_disk.get(uuid)
        if shared is None:
            return state.devices.whole([view])
        return state.devices.client(view, shared.directory.attach, state.decisions[uuid].plan.shows_grant)

    def _known_gates(self) -> set[Uuid]:
        """Where the directory cannot be read, those that may be known: each is told that its spec cannot be changed."""
        try:
            found = self._gate.uuids()
        except OSError as error:
            self._problems.log("the CDI specs cannot be read: %s", error, key=None)
            return set(self._state.decisions)
        self._problems.clear(None)
        return found

    def _withdraw(self, uuid: Uuid, problem: str) -> None:
        """The GPU is offered no more in this tick, and not ready. Who runs on it may still attach."""
        decision = self._state.decisions.get(uuid)
        if decision is None:
            return
        offer, readiness = replace(decision.offer, accepting=False), decision.readiness
        if readiness.takes_clients:
            readiness = Readiness(DaemonReason.GATE_NOT_OPEN, problem)
        else:
            self._lifecycle.notes[uuid] = problem
        self._state.decisions[uuid] = replace(decision, offer=offer, readiness=readiness)

    async def _apply_offers(self, given: DecisionInput) -> None:
        state = self._state
        patient = state.clock() - state.started_at < state.settings.intervals.patience
        if given.kubelet is None or (patient and not state.cache.informed):
            return
        offers: dict[str, list[GpuOffer]] = {}
        for uuid in (*state.on_disk, *(uuid for uuid in state.whole if uuid not in state.on_disk)):
            if uuid in state.decisions and not self._is_claimed(given, uuid):
                decision = state.decisions[uuid]
                resource = decision.plan.resource or names.slot_resource(decision.plan.share)
                if resource not in given.names_taken:
                    offers.setdefault(resource, []).append(decision.offer)
        problem = state.devices.problem() or state.devices.daemon_problem()
        changed = await state.plugins.apply(
            {resource: offered_devices(items) for resource, items in offers.items()},
            self.hooks,
            mps=bool(state.inventory.views) and not problem,
        )
        for resource, items in offers.items():
            problem = state.plugins.problem(resource)
            if problem:
                for offer in items:
                    self._lifecycle.notes.setdefault(
                        offer.uuid, f"{resource} cannot be offered to the kubelet: {problem}"
                    )
        closed = {offer.uuid for items in offers.values() for offer in items if not offer.accepting}
        closed |= {uuid for uuid, gpu in state.whole.items() if gpu.resource in given.names_taken}
        if state.withdrew(closed) or changed:
            state.kubelet_due.set()

    def _is_claimed(self, given: DecisionInput, uuid: Uuid) -> bool:
        """Whether the GPU's share is delivered by claims; of an unknown share, whether a claim holds a part of it."""
        share = self._state.decisions[uuid].plan.share
        model = given.shares.get(share)
        return model.by_claims if model else (share, uuid) in self._state.claims.holdings()

    def _offer_to_claims(self, given: DecisionInput) -> None:
        if not self._state.cache.informed:
            return
        self._delivery.offer(tuple(self._claimable(given)))
        closed = self._delivery.closed()
        if closed is not None:
            self._state.closed_to_claims(closed)

    def _claimable(self, given: DecisionInput) -> Iterator[Offered]:
        for uuid in self._state.on_disk:
            decision = self._state.decisions.get(uuid)
            share = given.shares.get(decision.plan.share) if decision else None
            if decision is not None and share is not None and share.by_claims:
                yield Offered(decision, share, self._state.inventory.views.get(uuid))
