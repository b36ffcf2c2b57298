"""What the kubelet is told of one resource: the devices offered and, for a while, those that are not any more.

The kubelet chooses an id among the healthy ones, asks Allocate for it, and with the answer in hand looks it up in the
list that is the latest by then, without asking whether it is there: where it is not, the kubelet ends by a nil pointer
(pkg/kubelet/cm/devicemanager/manager.go:945 of Kubernetes 1.37.0). So a device is withdrawn by calling it unhealthy,
which keeps the kubelet from choosing it, and vanishes only when nobody who had chosen it before can be under way.

Guarantees: an id that Allocate handed out is in every list until a reading of the kubelet names its container, or shows
after `promises.PROMISE_SECONDS` that there is none; with `DeviceService`, which hands out nothing that is not listed,
no allocation meets a list without its id.

Device ids that Allocate handed out and that the kubelet may not list yet.

Guarantees: from Allocate on an id counts as held, either here or in the kubelet's list, until its pod has ended. Only
a reading of the kubelet ends a promise, so an unreadable kubelet loses none. An id is free for the kubelet only once it
has forgotten the pod that had it, so a list begun after Allocate that names the id means the new pod.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

PROMISE_SECONDS = 60.0
"""An allocation that is not listed after so long came to nothing: the pod's admission failed."""


class PendingAllocations:
    """One entry at most for each id that was ever offered, so this stays small."""

    def __init__(self) -> None:
        self._allocated_at: dict[str, float] = {}

    def add(self, ids: Iterable[str], now: float) -> None:
        """Also for an id that is promised already: it has a new pod, which no earlier reading settles."""
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
    """Whether a reading begun at `started`, which lists the id or not, tells all there is to know of an allocation."""
    return started > allocated_at + (0.0 if listed else PROMISE_SECONDS)


WITHDRAWN_SECONDS = 30.0
"""How long a withdrawn device stays listed before a reading of the kubelet may end it.

Nothing tells that an allocation is under way: it holds no lock that a question to the kubelet would wait for, and has
no deadline. Between choosing and asking it waits for our own GetPreferredAllocation alone, which takes milliseconds, so
this has room for a node that stalls. It costs no more than that the node's capacity, though not what is allocatable,
counts the device for so long. An allocation that comes later yet is refused, which fails its pod alone.
"""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device as the kubelet is told of it; `id` has at most 63 characters."""

    id: str
    healthy: bool
    numa_node: int | None


class Listing:
    """The devices of one resource by id: the offer of the last call, then what was withdrawn lately."""

    def __init__(self) -> None:
        self._offered: dict[str, OfferedDevice] = {}
        self._withdrawn: dict[str, tuple[OfferedDevice, float]] = {}

    def offer(self, devices: Sequence[OfferedDevice], now: float) -> None:
        """Replaces the offer; what it lacks is withdrawn from `now` on."""
        offered = {device.id: device for device in devices}
        gone = {
            device_id: (replace(device, healthy=False), now)
            for device_id, device in self._offered.items()
            if device_id not in offered
        }
        kept = {device_id: entry for device_id, entry in self._withdrawn.items() if device_id not in offered}
        self._offered, self._withdrawn = offered, {**kept, **gone}

    def settle(self, named: Collection[str], started: float) -> None:
        """Drops what has been withdrawn for long enough, by a reading of the kubelet begun at `started`.

        `named`: the ids that it can still allocate, that containers hold, or that are promised: those stay.
        """
        self._withdrawn = {
            device_id: (device, since)
            for device_id, (device, since) in self._withdrawn.items()
            if device_id in named or started < since + WITHDRAWN_SECONDS
        }

    def devices(self) -> list[OfferedDevice]:
        return [*self._offered.values(), *(device for device, _ in self._withdrawn.values())]

    def missing(self, ids: Iterable[str]) -> list[str]:
        return [device_id for device_id in ids if device_id not in self._offered and device_id not in self._withdrawn]
