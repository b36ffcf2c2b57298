"""The kubelet's questions about a resource, answered from AgentState as it is at that moment.

Guarantees: Allocate refuses only what the share cannot serve at all, never for want of room; a container starts when
its GPU is ready and has room for it (`reconcile.slots`). Nothing here waits, reads a disk or asks a driver. Each method
raises LookupError where it has no answer; the text says why, for the pod's event.
"""

import time
from collections.abc import Callable, Collection, Sequence

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.kubelet.listing import preferred_slots
from gpushare.agent.kubelet.preferred_gpus import preferred_gpus
from gpushare.agent.kubelet.service import Hooks
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.slots import StartCapacity, waits_for
from gpushare.agent.state import AgentState
from gpushare.agent.status.meters import NodeMeters
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare, Placement
from gpushare.grant.environment import client_environment
from gpushare.grant.model import default_grant


class SlotHooks:
    """Of one share's slots."""

    def __init__(self, share: ShareName, state: AgentState) -> None:
        self._share = share
        self._state = state
        self._unstarted: dict[Uuid, set[int]] = {}
        """Slots handed out whose containers were not allowed to start yet."""

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """Also asks for a reading of the kubelet, which shows the allocation."""
        state, (uuid, _) = self._state, self._slot(device_ids)
        if self._decision(uuid).plan.stage is GpuStage.STOP:
            raise LookupError(f"GPU {uuid} of node {state.node} is being given back by GpuShare {self._share}")
        view = state.inventory.views.get(uuid)
        if view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {state.node}")
        state.kubelet_due.set()
        edits = state.devices.allocated(view, state.on_disk[uuid].directory.attach)
        return slot_edits(state.cache.shares.get(self._share), edits, view.info.memory_mib)

    def allocated(self, device_ids: Sequence[str]) -> None:
        """A new container has the slot, which has not started, even if an earlier one had."""
        uuid, slot = self._slot(device_ids)
        self._unstarted.setdefault(uuid, set()).add(slot)

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        share = self._state.cache.shares.get(self._share)
        placement = (share.clients.placement if share else None) or Placement.SPREAD
        return preferred_slots(available, must_include, size, placement)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        """A container that may start counts as started from now on: the next one finds its place taken."""
        uuid, slot = self._slot(device_ids)
        readiness = self._decision(uuid).readiness
        if not readiness.takes_clients:
            return f"GPU {uuid}: {readiness.reason.value}: {readiness.message}"
        unstarted = self._unstarted.get(uuid, set())
        if slot in unstarted:
            capacity = self._capacity(uuid)
            others = waits_for(unstarted, capacity)
            if others is not None:
                return (
                    f"GPU {uuid}: {others} containers that have started hold slots of GpuShare {self._share}, which "
                    f"has {capacity.per_gpu} on each GPU now; waiting until enough of them have ended"
                )
            unstarted.discard(slot)
        return None

    def _decision(self, uuid: Uuid) -> GpuDecision:
        state = self._state
        decision = state.decisions.get(uuid)
        if decision is None or decision.plan.share != self._share or uuid not in state.on_disk:
            raise LookupError(f"GPU {uuid} of node {state.node} does not belong to GpuShare {self._share} any more")
        return decision

    def _capacity(self, uuid: Uuid) -> StartCapacity:
        share = self._state.cache.shares.get(self._share)
        return StartCapacity(self._state.held(self._share, uuid), share.clients.per_gpu if share else None)

    def _slot(self, device_ids: Sequence[str]) -> tuple[Uuid, int]:
        if len(device_ids) != 1:
            raise LookupError(
                f"a container asked for {len(device_ids)} slots of {names.slot_resource(self._share)}: "
                "write a limit of 1, since one CUDA process reaches one GPU through one MPS daemon"
            )
        try:
            return names.parse_slot_id(device_ids[0])
        except ValueError as error:
            raise LookupError(str(error)) from None


def slot_edits(share: GpuShare | None, gpu: ContainerEdits, largest_gpu_mib: int | None) -> ContainerEdits:
    """The GPU's own edits and, for a pod that the webhook missed, the share's default grant. Pure.

    The runtime gives the pod's own environment precedence over these, and CDI's over both.
    """
    defaults = client_environment(default_grant(share), largest_gpu_mib) if share else {}
    return ContainerEdits({**defaults, **gpu.env}, gpu.mounts, gpu.devices, gpu.cdi_devices)


class WholeHooks:
    """Of a resource of whole GPUs: a container may have several, of this node."""

    def __init__(self, resource: str, state: AgentState) -> None:
        self._resource = resource
        self._state = state

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """Also asks for a reading of the kubelet, which shows the allocation."""
        views = [self._view(uuid) for uuid in device_ids]
        self._state.kubelet_due.set()
        return self._state.devices.allocated_whole(views)

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        infos = {uuid: view.info for uuid, view in self._state.inventory.views.items()}
        return preferred_gpus(available, must_include, size, infos)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        for uuid in device_ids:
            readiness = self._decision(uuid).readiness
            if not readiness.takes_clients:
                return f"GPU {uuid}: {readiness.reason.value}: {readiness.message}"
        return None

    def _view(self, uuid: Uuid) -> GpuView:
        state, plan = self._state, self._decision(uuid).plan
        if plan.stage is GpuStage.STOP:
            raise LookupError(f"GPU {uuid} of node {state.node} is being given back by GpuShare {plan.share}")
        view = state.inventory.views.get(uuid)
        if view is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {state.node}")
        return view

    def _decision(self, uuid: Uuid) -> GpuDecision:
        state = self._state
        decision, given = state.decisions.get(uuid), state.whole.get(uuid)
        if decision is None or given is None or given.resource != self._resource:
            raise LookupError(f"GPU {uuid} of node {state.node} is not given whole as {self._resource} any more")
        return decision


class ShareHooks:
    """Of a resource in our own domain. A share of whole GPUs may follow one of slots that had the same name."""

    def __init__(self, share: ShareName, state: AgentState) -> None:
        self._slots = SlotHooks(share, state)
        self._whole = WholeHooks(names.slot_resource(share), state)

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        return self._of(device_ids).edits(device_ids)

    def allocated(self, device_ids: Sequence[str]) -> None:
        self._of(device_ids).allocated(device_ids)

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return self._of(available).prefer(available, must_include, size)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return await self._of(device_ids).not_ready(device_ids)

    def _of(self, device_ids: Collection[str]) -> Hooks:
        return self._slots if any(names.is_slot_id(device_id) for device_id in device_ids) else self._whole


class MpsHooks:
    """Of the MPS pods: every GPU's device node, and nothing to wait for."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        devices = self._state.devices
        problem = devices.problem() or devices.daemon_problem()
        if problem:
            raise LookupError(problem)
        return devices.mps(self._state.inventory.views)

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return preferred_slots(available, must_include, size)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return None


class MeteredHooks:
    """The same hooks, timed: what is measured is the time that the kubelet waits.

    The time of an allocation is kept until the container may start. If it never does, the next allocation of the same
    device id replaces it, so there is at most one entry for each id.
    """

    def __init__(self, hooks: Hooks, meters: NodeMeters, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._hooks = hooks
        self._meters = meters
        self._clock = clock
        self._allocated_at: dict[str, float] = {}

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        try:
            with self._meters.allocate.time():
                return self._hooks.edits(device_ids)
        except LookupError:
            self._meters.allocate_refused.inc()
            raise

    def allocated(self, device_ids: Sequence[str]) -> None:
        self._hooks.allocated(device_ids)
        self._allocated_at.update(dict.fromkeys(device_ids, self._clock()))

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        return self._hooks.prefer(available, must_include, size)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        try:
            why = await self._hooks.not_ready(device_ids)
        except LookupError:
            self._meters.not_ready.inc()
            raise
        if why is not None:
            self._meters.not_ready.inc()
        else:
            for device_id in device_ids:
                # A container that is started again has no new allocation.
                if (began := self._allocated_at.pop(device_id, None)) is not None:
                    self._meters.ready.observe(self._clock() - began)
        return why
