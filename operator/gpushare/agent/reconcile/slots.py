"""A share's slots on this node: which ids the kubelet is offered, and what a container that got one is given.

Guarantees: Allocate refuses only what the share cannot serve at all, never for want of room; a container starts when
its GPU is verified and has room for it (see `late`).

Which slots of a GPU the kubelet is offered. Pure.

Guarantees: a held slot is offered for as long as it is held, since the kubelet, when it restarts, refuses containers
whose device is gone; and the slots offered are never more than `per_gpu`, unless more than that are held already.

Containers that have a slot, but of a GPU that is full by now: they wait until others have ended. Pure.

A share may shrink between a container's Allocate and its start, and the kubelet may hand out a slot that the agent is
just withdrawing. Refusing in Allocate would make the pod Failed, so the container is held back before it starts. What
counts is who has started; neither a slot's number nor when it was handed out says that.

Guarantees: a container starts only while fewer than `per_gpu`, as the share is now, have started on its GPU and hold
their slots still; as soon as there is room one of those that wait may start, even if all do; one that had started is
never held back, however often it restarts.
Does not guarantee this across a restart of the agent: whoever got a slot before counts as started; nor where the
kubelet gives one slot to two containers, which are counted as one (see `turns`).
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count, islice

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.inventory import GpuView
from gpushare.agent.kubelet.holdings import Slots
from gpushare.agent.kubelet.listing import OfferedDevice
from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.grant.environment import client_environment
from gpushare.grant.model import default_grant


@dataclass(frozen=True, slots=True)
class StartCapacity:
    """One GPU as it is now. `held`: slots of containers, with those promised; `per_gpu`: None for an unknown share."""

    held: Slots
    per_gpu: int | None


def waits_for(unstarted: AbstractSet[int], room: StartCapacity) -> int | None:
    """How many containers one that has not started waits for, some of which must end; None: it may start.

    Those that have not started do not count: else they could wait for each other.
    """
    others = len(room.held - unstarted)
    return others if room.per_gpu is not None and others >= room.per_gpu else None


@dataclass(frozen=True, slots=True)
class OfferedSlot:
    slot: int
    healthy: bool


def offered_slots(per_gpu: int, held: AbstractSet[int], accepting: bool, lost: bool) -> list[OfferedSlot]:
    """By number: the held slots and, while `accepting`, the lowest free ones up to `per_gpu` together.

    A held slot is unhealthy only on a `lost` GPU: the kubelet counts an unhealthy one against capacity elsewhere.
    """
    free = per_gpu - len(held) if accepting and not lost else 0
    lowest = islice((slot for slot in count() if slot not in held), max(free, 0))
    return [OfferedSlot(slot, not lost) for slot in sorted({*held, *lowest})]


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """What decides a GPU's offer. `held`: slots of containers, with those promised."""

    uuid: Uuid
    per_gpu: int
    held: Slots
    accepting: bool
    lost: bool = False
    numa_node: int | None = None


def offer_of(plan: GpuPlan, share: GpuShare | None, takes_pods: bool, view: GpuView | None, held: Slots) -> GpuOffer:
    """Free slots only on a GPU that takes pods, of a share that still takes clients; held ones always."""
    per_gpu = share.spec.clients.per_gpu if share else 0
    lost = view is not None and view.lost
    accepting = takes_pods and plan.stage is GpuStage.SERVE and share is not None and not share.deleting and not lost
    return GpuOffer(plan.uuid, per_gpu, held, accepting, lost, view.info.numa_node if view else None)


def offered_devices(offers: Iterable[GpuOffer]) -> list[OfferedDevice]:
    return [
        OfferedDevice(names.slot_id(offer.uuid, item.slot), item.healthy, offer.numa_node)
        for offer in offers
        for item in offered_slots(offer.per_gpu, offer.held, offer.accepting, offer.lost)
    ]


def slot_edits(share: GpuShare | None, gpu: ContainerEdits, largest_gpu_mib: int | None) -> ContainerEdits:
    """The GPU's own edits and, for a pod that the webhook missed, the share's default grant.

    The runtime lets the pod's own environment win over these, and CDI's over both.
    """
    defaults = client_environment(default_grant(share), largest_gpu_mib) if share else {}
    return ContainerEdits({**defaults, **gpu.env}, gpu.mounts, gpu.devices, gpu.cdi_devices)


class SlotHooks:
    """What a share's device plugin asks while the kubelet waits: answered from memory."""

    def __init__(
        self,
        share: ShareName,
        edits: Callable[[ShareName, Uuid], ContainerEdits],
        verdict: Callable[[ShareName, Uuid], Readiness],
        room: Callable[[ShareName, Uuid], StartCapacity],
    ) -> None:
        """`edits` and `verdict` raise LookupError, with a sentence, for a GPU that the share does not have."""
        self._share = share
        self._edits = edits
        self._verdict = verdict
        self._room = room
        self._unstarted: dict[Uuid, set[int]] = {}
        """Slots handed out whose containers have not been let start yet."""

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        return self._edits(self._share, self._slot(device_ids)[0])

    def allocated(self, device_ids: Sequence[str]) -> None:
        """Its container has not started, whatever an earlier one with its slot did."""
        uuid, slot = self._slot(device_ids)
        self._unstarted.setdefault(uuid, set()).add(slot)

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        """A container that may start counts as started from now on: the next one finds the room taken."""
        uuid, slot = self._slot(device_ids)
        verdict = self._verdict(self._share, uuid)
        if not verdict.takes_clients:
            return f"GPU {uuid}: {verdict.reason.value}: {verdict.message}"
        unstarted = self._unstarted.get(uuid, set())
        if slot in unstarted:
            room = self._room(self._share, uuid)
            others = waits_for(unstarted, room)
            if others is not None:
                return (
                    f"GPU {uuid}: {others} containers that have started hold slots of GpuShare {self._share}, which "
                    f"has {room.per_gpu} on each GPU now; waiting until enough of them have ended"
                )
            unstarted.discard(slot)
        return None

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


class MpsHooks:
    """For our own MPS pods: every GPU's device node, and nothing to wait for."""

    def __init__(self, edits: Callable[[], ContainerEdits]) -> None:
        self._edits = edits

    def edits(self, device_ids: Sequence[str]) -> ContainerEdits:
        return self._edits()

    def allocated(self, device_ids: Sequence[str]) -> None:
        pass

    async def not_ready(self, device_ids: Sequence[str]) -> str | None:
        return None
