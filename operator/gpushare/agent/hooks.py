"""What the kubelet's plugins and claims are answered: by the latest knowledge, not by the last tick's."""

from collections.abc import Callable, Iterator

from gpushare.agent.dra.claims import WITHOUT_CDI, ClaimableGpu
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.kubelet.holdings import Holdings, united
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.agent.reconcile.slots import SlotHooks, StartCapacity, slot_edits
from gpushare.agent.state import AgentState
from gpushare.api.gpunode import ShareName, Uuid


class SlotAndClaimHooks:
    """Each raises LookupError where it has no answer; the text says why, for the pod's event."""

    def __init__(self, known: AgentState, promised: Callable[[], Holdings], allocating: Callable[[], None]) -> None:
        """`promised`: slots handed out that no reading of the kubelet shows yet. `allocating`: called at each."""
        self._known = known
        self._promised = promised
        self._allocating = allocating

    def hooks(self, share: ShareName) -> SlotHooks:
        return SlotHooks(share, self._slot_edits, self._slot_verdict, self._slot_room)

    def mps_edits(self) -> ContainerEdits:
        devices = self._known.devices
        problem = devices.problem()
        if problem:
            raise LookupError(problem)
        return devices.mps(self._known.inventory.views)

    def claimable(self) -> Iterator[ClaimableGpu]:
        shares = self._known.models()
        for uuid in self._known.on_disk:
            if uuid in self._known.decisions:
                decision = self._known.decisions[uuid]
                verdict = decision.verdict if self._known.devices.by_cdi else WITHOUT_CDI
                leaving = decision.plan.stage in (GpuStage.LEAVE, GpuStage.STOP)
                yield ClaimableGpu(uuid, shares.get(decision.plan.share), verdict, leaving)

    def _decision(self, share: ShareName, uuid: Uuid) -> GpuDecision:
        decision = self._known.decisions.get(uuid)
        if decision is None or decision.plan.share != share or uuid not in self._known.on_disk:
            raise LookupError(f"GPU {uuid} of node {self._known.node} does not belong to GpuShare {share} any more")
        return decision

    def _slot_edits(self, share: ShareName, uuid: Uuid) -> ContainerEdits:
        if self._decision(share, uuid).plan.stage is GpuStage.STOP:
            raise LookupError(f"GPU {uuid} of node {self._known.node} is being given back by GpuShare {share}")
        view = self._known.inventory.views.get(uuid)
        if view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {self._known.node}")
        self._allocating()
        model = self._known.models().get(share)
        return slot_edits(model, self._known.devices.allocated(view), view.info.memory_mib)

    def _slot_verdict(self, share: ShareName, uuid: Uuid) -> Readiness:
        return self._decision(share, uuid).verdict

    def _slot_room(self, share: ShareName, uuid: Uuid) -> StartCapacity:
        view = self._known.kubelet.view
        held = united(view.held if view else {}, self._promised()).get((share, uuid), frozenset())
        model = self._known.models().get(share)
        return StartCapacity(held, model.spec.clients.per_gpu if model else None)
