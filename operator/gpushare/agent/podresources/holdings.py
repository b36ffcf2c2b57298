"""Who holds which slot, by one reading of the kubelet. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType

from gpushare.api import names
from gpushare.api.gpunode import ShareName, Uuid

Slots = frozenset[int]
ShareGpu = tuple[ShareName, Uuid]
Slot = tuple[ShareName, Uuid, int]
Holdings = Mapping[ShareGpu, Slots]
ContainerName = tuple[str, str, str]
"""(namespace, pod, container)."""
WholeNames = Mapping[tuple[str, str], ShareName]
"""(resource, GPU) -> share: the GPUs that are given whole. Each is slot 0 of itself."""
NO_WHOLE: WholeNames = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """One device id of any resource that one container holds, from its pod's admission to its end. `resource`: of what
    it has by a claim, the DRA driver."""

    namespace: str
    pod: str
    container: str
    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class KubeletView:
    """One reading of PodResources, begun at `started`.

    `allocatable`, `held`: (share, GPU) -> slots. `holders`: each held slot's containers; the kubelet should name one,
    and can name more (see `allocation_lock`). `absent`: when their pods, as namespace/name, still held nothing; without
    those of the first reading. `whole`: those of these GPUs that are given whole.

    `allocatable_ids`, `held_ids`: device ids by resource, others' included. `asking`: how many containers hold some of
    a resource.

    `nvidia_claims`: (namespace, name) of the pods that have a GPU by a claim of NVIDIA's DRA driver.

    `forgotten`: those of `held` that the kubelet no longer lists although their containers run: it may not give them
    to others. Where it has already, the container has the number of another slot here.
    """

    started: float
    allocatable: Holdings
    held: Holdings
    holders: Mapping[Slot, frozenset[ContainerName]] = field(default_factory=dict)
    absent: Mapping[str, float] = field(default_factory=dict)
    whole: frozenset[ShareGpu] = frozenset()
    allocatable_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    held_ids: Mapping[str, frozenset[str]] = field(default_factory=dict)
    asking: Mapping[str, int] = field(default_factory=dict)
    nvidia_claims: frozenset[tuple[str, str]] = frozenset()
    forgotten: Holdings = field(default_factory=dict)

    def containers(self) -> frozenset[ContainerName]:
        """Those that hold slots or whole GPUs."""
        return frozenset[ContainerName]().union(*self.holders.values())

    def holding(self, share: ShareName, uuid: Uuid) -> Slots:
        return self.held.get((share, uuid), frozenset())

    def pods(self) -> dict[ShareGpu, frozenset[str]]:
        """The pods that hold slots of each share and GPU, as namespace/name."""
        holders: dict[ShareGpu, frozenset[str]] = {}
        for (share, uuid, _), containers in self.holders.items():
            holders[share, uuid] = holders.get((share, uuid), frozenset()) | _pods(containers)
        return holders

    def share_gpus(self) -> dict[ContainerName, ShareGpu]:
        """The share and GPU of each container's slot; a container has one. Without whole GPUs."""
        return {
            container: (share, uuid)
            for (share, uuid, _), containers in self.holders.items()
            if (share, uuid) not in self.whole
            for container in containers
        }

    def whole_gpus(self) -> dict[ContainerName, list[ShareGpu]]:
        """The whole GPUs of each container that has some."""
        held: dict[ContainerName, list[ShareGpu]] = {}
        for (share, uuid, _), containers in sorted(self.holders.items()):
            for container in containers if (share, uuid) in self.whole else ():
                held.setdefault(container, []).append((share, uuid))
        return held


def view(
    started: float,
    allocatable: Collection[tuple[str, str]],
    held: Iterable[HeldDevice],
    before: KubeletView | None = None,
    whole: WholeNames = NO_WHOLE,
) -> KubeletView:
    """`allocatable`: (resource, device id). `before`: the previous reading. Resources and ids that are neither slots
    nor whole GPUs of ours are counted, and nothing else.
    """
    held = list(held)
    holders: dict[Slot, set[ContainerName]] = {}
    for device in held:
        slot = _slot(device.resource, device.id, whole)
        if slot is not None:
            holders.setdefault(slot, set()).add((device.namespace, device.pod, device.container))
    return KubeletView(
        started,
        by_gpu(allocatable, whole),
        _grouped(holders),
        {slot: frozenset(containers) for slot, containers in holders.items()},
        _absent(_pods(set().union(*holders.values())), before) if before else {},
        frozenset((share, uuid) for (_, uuid), share in whole.items()),
        _by_resource(allocatable),
        _by_resource((device.resource, device.id) for device in held),
        Counter(
            resource for resource, *_ in {(item.resource, item.namespace, item.pod, item.container) for item in held}
        ),
        frozenset((item.namespace, item.pod) for item in held if item.resource == names.NVIDIA_DRA_DRIVER),
    )


def united(reading: KubeletView, known: Mapping[ContainerName, Collection[Slot]]) -> KubeletView:
    """The reading with holders that it lacks. `known`: their slots as they were known last; a negative number is none
    that is known."""
    holders, forgotten = dict(reading.holders), list[Slot]()
    lacking = sorted((container, slot) for container, slots in known.items() for slot in slots)
    for container, slot in sorted(lacking, key=lambda item: _is_taken(reading, item[1])):
        if _is_taken(reading, slot):
            slot = next(free for free in ((*slot[:2], number) for number in count()) if free not in holders)
        holders[slot] = holders.get(slot, frozenset()) | {container}
        forgotten.append(slot)
    return replace(reading, holders=holders, held=_grouped(holders), forgotten=_grouped(forgotten))


def _is_taken(reading: KubeletView, slot: Slot) -> bool:
    """Whether the kubelet has given the slot to another; a whole GPU has no other number."""
    return slot[:2] not in reading.whole and (slot[2] < 0 or slot in reading.holders)


def _by_resource(devices: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    grouped: dict[str, set[str]] = {}
    for resource, device_id in devices:
        grouped.setdefault(resource, set()).add(device_id)
    return {resource: frozenset(ids) for resource, ids in grouped.items()}


def _pods(containers: Iterable[ContainerName]) -> frozenset[str]:
    return frozenset(f"{namespace}/{pod}" for namespace, pod, _ in containers)


def _absent(pods: Collection[str], before: KubeletView) -> dict[str, float]:
    listed = _pods(set().union(*before.holders.values()))
    new = {pod: before.started for pod in pods if pod not in listed}
    return new | {pod: at for pod, at in before.absent.items() if pod in pods}


def merged_holdings(listed: Holdings, pending: Holdings) -> dict[ShareGpu, Slots]:
    """Every slot held: listed by the kubelet, or handed out and not listed yet."""
    nothing: Slots = frozenset()
    return {key: listed.get(key, nothing) | pending.get(key, nothing) for key in listed.keys() | pending.keys()}


def by_gpu(devices: Iterable[tuple[str, str]], whole: WholeNames = NO_WHOLE) -> dict[ShareGpu, Slots]:
    """Groups (resource, device id) pairs; ignores what is neither a slot nor a whole GPU of ours."""
    slots = (_slot(resource, device_id, whole) for resource, device_id in devices)
    return _grouped(slot for slot in slots if slot is not None)


def _grouped(slots: Iterable[Slot]) -> dict[ShareGpu, Slots]:
    grouped: dict[ShareGpu, set[int]] = {}
    for share, uuid, slot in slots:
        grouped.setdefault((share, uuid), set()).add(slot)
    return {share_gpu: frozenset(numbers) for share_gpu, numbers in grouped.items()}


def _slot(resource: str, device_id: str, whole: WholeNames) -> Slot | None:
    owner = whole.get((resource, device_id))
    if owner is not None:
        return owner, device_id, 0
    share = names.share_of_resource(resource)
    if share is None:
        return None
    try:
        return share, *names.parse_slot_id(device_id)
    except ValueError:
        return None
