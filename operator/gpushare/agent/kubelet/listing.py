"""The device list of one resource: the devices offered and, for a while, those withdrawn. Pure.

The kubelet chooses an id among the healthy ones, asks Allocate for it, and with the answer in hand looks it up in the
latest list without asking whether it is there: where it is not, the kubelet ends by a nil pointer (Kubernetes 1.37,
devicemanager's `allocateContainerResources`). So a withdrawn device is first listed as unhealthy, which keeps the
kubelet from choosing it, and leaves the list only when no allocation that chose it before can be under way.

Guarantees: an id that Allocate handed out is in every list until a reading of the kubelet names its container, or shows
PENDING_SECONDS later that there is none. With `DeviceService`, which hands out listed ids alone, no allocation meets a
list without its id. From Allocate on an id counts as held, in `PendingAllocations` or in the kubelet's list, until its
pod has ended: only a reading of the kubelet ends a pending allocation, so an unreadable kubelet loses none.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpushare.api import names
from gpushare.api.gpushare import Placement

PENDING_SECONDS = 60.0
"""An allocation that is not listed after so long came to nothing: the pod's admission failed."""

WITHDRAWN_SECONDS = 30.0
"""How long a withdrawn device stays listed before a reading of the kubelet may end it.

Nothing shows that an allocation is under way: it holds no lock that a question to the kubelet would wait for, and has
no deadline. Between choosing and asking it waits for our own GetPreferredAllocation alone, which takes milliseconds, so
this has room for a node that stalls. The price: for so long the node's capacity, though not what is allocatable, counts
the device. An allocation that comes even later is refused, which fails its pod alone.
"""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device as the kubelet lists it; `id` has at most 63 characters."""

    id: str
    healthy: bool
    numa_node: int | None


class Listing:
    """The devices of one resource by id: the latest offer, then what was withdrawn lately."""

    def __init__(self) -> None:
        self._offered: dict[str, OfferedDevice] = {}
        self._withdrawn: dict[str, tuple[OfferedDevice, float]] = {}

    def offer(self, devices: Sequence[OfferedDevice], now: float) -> None:
        """Replaces the offer; devices that it lacks are withdrawn from `now` on."""
        offered = {device.id: device for device in devices}
        gone = {
            device_id: (replace(device, healthy=False), now)
            for device_id, device in self._offered.items()
            if device_id not in offered
        }
        kept = {device_id: entry for device_id, entry in self._withdrawn.items() if device_id not in offered}
        self._offered, self._withdrawn = offered, {**kept, **gone}

    def settle(self, named: Collection[str], started: float) -> None:
        """Drops devices that were withdrawn long enough ago, by a reading of the kubelet begun at `started`.

        `named`: the ids that it can still allocate, that containers hold, or that are pending: those stay.
        """
        self._withdrawn = {
            device_id: (device, since)
            for device_id, (device, since) in self._withdrawn.items()
            if device_id in named or started < since + WITHDRAWN_SECONDS
        }

    def devices(self) -> list[OfferedDevice]:
        return [*self._offered.values(), *(device for device, _ in self._withdrawn.values())]

    def missing(self, ids: Iterable[str]) -> list[str]:
        """The ones of `ids` that are not listed."""
        return [device_id for device_id in ids if device_id not in self._offered and device_id not in self._withdrawn]


class PendingAllocations:
    """Device ids that Allocate handed out and that no reading of the kubelet shows yet.

    An id is free for the kubelet only once it has forgotten the pod that had it, so a list begun after Allocate that
    names the id means the new pod. At most one entry for each id that was ever offered.
    """

    def __init__(self) -> None:
        self._allocated_at: dict[str, float] = {}

    def add(self, ids: Iterable[str], now: float) -> None:
        """An id that is pending already has a new pod: readings before `now` do not settle it."""
        self._allocated_at.update(dict.fromkeys(ids, now))

    def settle(self, listed: Collection[str], started: float) -> None:
        """`listed`: the ids that containers hold by a reading begun at `started`, on the clock of `add`."""
        self._allocated_at = {
            device_id: at
            for device_id, at in self._allocated_at.items()
            if not settled(at, device_id in listed, started)
        }

    def ids(self) -> frozenset[str]:
        return frozenset(self._allocated_at)


def settled(allocated_at: float, listed: bool, started: float) -> bool:
    """Whether a reading begun at `started` decides on an allocation. `listed`: the reading names its id."""
    return started > allocated_at + (0.0 if listed else PENDING_SECONDS)


@dataclass(frozen=True, slots=True)
class PlaceDemand:
    """Of a GPU whose share has a queue: `wanted` containers have a place or wait for one of its `places`."""

    wanted: int = 0
    places: int = 0

    def rank(self, placement: Placement) -> tuple[bool, int]:
        """Lower is better: a free place first, the fuller GPU where the share packs; then where fewest wait."""
        full = 0 < self.places <= self.wanted
        return full, -self.wanted if placement is Placement.PACK and not full else self.wanted


NO_DEMAND: Mapping[str, PlaceDemand] = MappingProxyType({})
NO_SLOTS: Mapping[str, int] = MappingProxyType({})


def preferred_slots(
    available: Collection[str],
    must_include: Collection[str],
    size: int,
    placement: Placement = Placement.SPREAD,
    demand: Mapping[str, PlaceDemand] = NO_DEMAND,
    beyond: Mapping[str, int] = NO_SLOTS,
) -> list[str]:
    """`size` device ids, each from the GPU with most free ids left, or with fewest where the share packs. `demand`: by
    GPU, of a share with a queue: it comes before the number of free ids, since whoever holds one may never compute.
    `beyond`: so many ids of a GPU are not free, although the kubelet thinks so.

    The kubelet takes the answer as a wish. Ids of `must_include` come first, even beyond `size`. Fewer than `size` when
    there are no more. Never an error, which would fail the pod: an id of another form counts as a GPU of its own.
    """
    chosen = list(dict.fromkeys(must_include))
    free: dict[str, list[tuple[int, str]]] = {}
    for device_id in set(available).difference(chosen):
        gpu, slot = _gpu_and_slot(device_id)
        free.setdefault(gpu, []).append((slot, device_id))
    for name, slots in list(free.items()):
        slots.sort(reverse=True)
        del slots[: beyond.get(name, 0)]
        if not slots:
            del free[name]
    sign = 1 if placement is Placement.PACK else -1
    while len(chosen) < size and free:
        ranks = {name: demand.get(name, PlaceDemand()).rank(placement) for name in free}
        gpu = min(free, key=lambda name: (ranks[name], sign * len(free[name]), name))
        chosen.append(free[gpu].pop()[1])
        if not free[gpu]:
            del free[gpu]
    return chosen


def _gpu_and_slot(device_id: str) -> tuple[str, int]:
    try:
        return names.parse_slot_id(device_id)
    except ValueError:
        return device_id, 0
