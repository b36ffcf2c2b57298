"""What the kubelet's plugins and claims are answered: by the latest knowledge, not by the last tick's."""

from collections.abc import Callable, Iterator

from gpushare.api.gpunode import ShareName, Uuid
from gpushare.node.assignments import Stage
from gpushare.node.decision import GpuDecision
from gpushare.node.dra.claims import WITHOUT_CDI, Gpu
from gpushare.node.edits import ContainerEdits
from gpushare.node.holdings import Holdings, united
from gpushare.node.knowledge import Knowledge
from gpushare.node.late import Room
from gpushare.node.slots import SlotHooks, slot_edits
from gpushare.node.verdict import Verdict


class Answers:
    """Each raises LookupError where it has no answer; the text says why, for the pod's event."""

    def __init__(self, known: Knowledge, promised: Callable[[], Holdings], allocating: Callable[[], None]) -> None:
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

    def claimable(self) -> Iterator[Gpu]:
        shares = self._known.models()
        for uuid in self._known.on_disk:
            if uuid in self._known.decisions:
                decision = self._known.decisions[uuid]
                verdict = decision.verdict if self._known.devices.by_cdi else WITHOUT_CDI
                leaving = decision.plan.stage in (Stage.LEAVE, Stage.STOP)
                yield Gpu(uuid, shares.get(decision.plan.share), verdict, leaving)

    def _decision(self, share: ShareName, uuid: Uuid) -> GpuDecision:
        decision = self._known.decisions.get(uuid)
        if decision is None or decision.plan.share != share or uuid not in self._known.on_disk:
            raise LookupError(f"GPU {uuid} of node {self._known.node} does not belong to GpuShare {share} any more")
        return decision

    def _slot_edits(self, share: ShareName, uuid: Uuid) -> ContainerEdits:
        if self._decision(share, uuid).plan.stage is Stage.STOP:
            raise LookupError(f"GPU {uuid} of node {self._known.node} is being given back by GpuShare {share}")
        view = self._known.inventory.views.get(uuid)
        if view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {self._known.node}")
        self._allocating()
        model = self._known.models().get(share)
        return slot_edits(model, self._known.devices.allocated(view), view.info.memory_mib)

    def _slot_verdict(self, share: ShareName, uuid: Uuid) -> Verdict:
        return self._decision(share, uuid).verdict

    def _slot_room(self, share: ShareName, uuid: Uuid) -> Room:
        view = self._known.kubelet.view
        held = united(view.held if view else {}, self._promised()).get((share, uuid), frozenset())
        model = self._known.models().get(share)
        return Room(held, model.spec.clients.per_gpu if model else None)
