"""A share's slots: what a container with one gets, and when it may start.

Guarantees: Allocate refuses only what the share cannot serve at all, never for want of room. A container starts when
its GPU is ready and fewer than `per_gpu` others, as the share is now, have started there and still hold their slots.
Containers that have not started do not count, so they never wait for each other. One that has started is never held
back, however often it restarts. A share may shrink between a container's Allocate and its start, and the
kubelet may hand out a slot that the agent is just withdrawing: to refuse it in Allocate would make the pod Failed, so
its container waits before it starts. Which containers count is decided by who has started: neither a slot's number nor
the time of its allocation shows that.
Does not guarantee this across a restart of the agent, where every container with a slot counts as started; nor where
the kubelet gives one slot to two containers, which count as one (see `allocation_lock`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.kubelet.listing import PlaceDemand, preferred_slots
from gpushare.agent.podresources.holdings import Slots
from gpushare.agent.reconcile.assignments import GpuStage
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare, Placement
from gpushare.messages.wording import are, count_of


@dataclass(frozen=True, slots=True)
class AllocationSources:
    """What the kubelet's questions are answered from, each as it is when it is asked for.

    `views`: all GPUs of the node, as NVML shows them. `decisions`: by GPU. `held`: slots of a share on a GPU that
    containers hold, with pending ones. `read_kubelet`: asks for a reading of the kubelet, which shows a new allocation.
    """

    node: str
    devices: Devices
    views: Callable[[], Mapping[Uuid, GpuView]]
    decisions: Callable[[], Mapping[Uuid, GpuDecision]]
    shares: Callable[[], Mapping[ShareName, GpuShare]]
    held: Callable[[ShareName, Uuid], Slots]
    read_kubelet: Callable[[], None]


def waits_for(unstarted: AbstractSet[int], held: Slots, per_gpu: int | None) -> int | None:
    """How many started containers one that has not started waits for, some of which must end; None: it may start. Pure.

    `unstarted`, `held`: slots of the GPU. `per_gpu`: None of a share that is not known. Those that have not started do
    not count: else they could wait for each other.
    """
    others = len(held - unstarted)
    return others if per_gpu is not None and others >= per_gpu else None


class SlotDevices:
    """The slots of one share."""

    def __init__(self, share: ShareName, sources: AllocationSources) -> None:
        self._share = share
        self._sources = sources
        self._unstarted: dict[Uuid, set[int]] = {}
        """Slots handed out whose containers were not allowed to start yet."""

    def has(self, device_ids: Collection[str]) -> bool:
        return any(names.is_slot_id(device_id) for device_id in device_ids)

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        """The GPU's own edits and, for a pod that the webhook missed, the share's default grant. Asks for a reading of
        the kubelet, which shows the allocation.

        The runtime gives the pod's own environment precedence over these, and CDI's over both.
        """
        uuid, _ = self._slot(device_ids)
        decision = self._decision(uuid)
        if decision.plan.stage is GpuStage.STOP:
            raise LookupError(f"GPU {uuid} of node {self._sources.node} is being given back by GpuShare {self._share}")
        if decision.view is None or decision.files is None:
            raise LookupError(f"NVML does not show GPU {uuid} on node {self._sources.node}")
        self._sources.read_kubelet()
        gpu = self._sources.devices.allocated(decision.view, decision.files.directory.attach)
        return ContainerEdits({**decision.default_environment, **gpu.env}, gpu.mounts, gpu.devices, gpu.cdi_devices)

    def allocated(self, device_ids: Sequence[str]) -> None:
        """A new container has the slot, which has not started, even if an earlier one had."""
        uuid, slot = self._slot(device_ids)
        self._unstarted.setdefault(uuid, set()).add(slot)

    def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> list[str]:
        share = self._sources.shares().get(self._share)
        placement = (share.clients.placement if share else None) or Placement.SPREAD
        beyond = {uuid: decision.offer.beyond for uuid, decision in self._sources.decisions().items()}
        return preferred_slots(available, must_include, size, placement, dict(self._demand()), beyond)

    def _demand(self) -> Iterator[tuple[Uuid, PlaceDemand]]:
        for uuid, decision in self._sources.decisions().items():
            broker = decision.files.broker if decision.files is not None else None
            if decision.plan.share == self._share and broker is not None and broker.places is not None:
                yield uuid, PlaceDemand(len(broker.places.held) + broker.waiting, broker.places.limit)

    def not_ready(self, device_ids: Sequence[str]) -> str | None:
        """A container that may start counts as started from now on: the next one finds its place taken."""
        uuid, slot = self._slot(device_ids)
        readiness = self._decision(uuid).readiness
        if not readiness.takes_clients:
            return f"GPU {uuid}: {readiness.reason.value}: {readiness.message}"
        unstarted = self._unstarted.get(uuid, set())
        if slot in unstarted:
            share = self._sources.shares().get(self._share)
            per_gpu = share.slots_per_gpu if share else None
            others = waits_for(unstarted, self._sources.held(self._share, uuid), per_gpu)
            if others is not None:
                return (
                    f"GPU {uuid}: {count_of(others, 'slot')} of GpuShare {self._share} {are(others)} held by "
                    f"containers that have started, and it has {per_gpu} on each GPU now; waiting until enough of "
                    "them have ended"
                )
            unstarted.discard(slot)
        return None

    def _decision(self, uuid: Uuid) -> GpuDecision:
        decision = self._sources.decisions().get(uuid)
        if decision is None or decision.plan.share != self._share or decision.files is None:
            raise LookupError(
                f"GPU {uuid} of node {self._sources.node} does not belong to GpuShare {self._share} any more"
            )
        return decision

    def _slot(self, device_ids: Sequence[str]) -> tuple[Uuid, int]:
        if len(device_ids) != 1:
            raise LookupError(
                f"a container asked for {count_of(len(device_ids), 'slot')} of {names.slot_resource(self._share)}: "
                "write a limit of 1, since one CUDA process reaches one GPU through one MPS daemon"
            )
        try:
            return names.parse_slot_id(device_ids[0])
        except ValueError as error:
            raise LookupError(str(error)) from None
