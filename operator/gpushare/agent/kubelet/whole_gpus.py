"""The GPUs of one resource that containers get whole: a container may have several, of this node."""

from collections.abc import Collection, Sequence

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.kubelet.preferred_gpus import preferred_gpus
from gpushare.agent.kubelet.slots import AllocationSources
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.whole_gpus import WholeGpu
from gpushare.api.gpunode import Uuid


class WholeDevices:
    def __init__(self, resource: str, sources: AllocationSources) -> None:
        self._resource = resource
        self._sources = sources

    def has(self, device_ids: Collection[str]) -> bool:
        return True

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """Asks for a reading of the kubelet, which shows the allocation."""
        views = [self._view(uuid) for uuid in device_ids]
        self._sources.read_kubelet()
        return self._sources.devices.allocated_whole(views)

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        infos = {uuid: view.info for uuid, view in self._sources.views().items()}
        return preferred_gpus(available, must_include, size, infos)

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        for uuid in device_ids:
            readiness = self._decision(uuid).readiness
            if not readiness.takes_clients:
                return f"GPU {uuid}: {readiness.reason.value}: {readiness.message}"
        return None

    def _view(self, uuid: Uuid) -> GpuView:
        decision = self._decision(uuid)
        if decision.plan.stage is GpuStage.STOP:
            raise LookupError(
                f"GPU {uuid} of node {self._sources.node} is being given back by GpuShare {decision.plan.share}"
            )
        if decision.view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {self._sources.node}")
        return decision.view

    def _decision(self, uuid: Uuid) -> GpuDecision:
        decision = self._sources.decisions().get(uuid)
        given = decision.taken if decision is not None else None
        if decision is None or not isinstance(given, WholeGpu) or given.resource != self._resource:
            node = self._sources.node
            raise LookupError(f"GPU {uuid} of node {node} is not given whole as {self._resource} any more")
        return decision
