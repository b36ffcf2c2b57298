"""Why a ResourceClaim is not allocated: which capacity is short, by how much, and where it nearly fits. Pure.

The scheduler only says that it cannot allocate all claims. It decides on objects in the API, so the same sums are made
here: for each GPU what claims have consumed, what is left, and what this claim needs, rounded up by the GPU's own
policy. A claim that would fit is not explained, unless it has selectors of its own: the scheduler is about to allocate
it, or its pod waits for something else.

Claims that ask for the same are explained once, and GPUs with the same left are looked at once. Tenants decide how many
claims and different requests there are, so of each share only so many are explained (EXPLAINED, REQUESTS): a turn for
each namespace, and of one namespace the claims that were made for pods first, then those that have waited longest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from gpushare.api import names
from gpushare.api.gpushare import MOST_UNPLACED, ClaimCounts, GpuShare, PendingClaim
from gpushare.api.quantity import MIB, format_mib
from gpushare.messages.wording import count_of
from gpushare.planner.turns import in_turns

GRACE = timedelta(seconds=10)
"""How long a claim may wait before we explain it: the scheduler may be at work, or a client may be ending."""
EXPLAINED = 1000
"""Claims of a share that are explained at once."""
REQUESTS = 200
"""Different requests among them."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Whole units; memory in bytes. `step` and `least`: what a request is rounded up to."""

    value: int
    default: int
    least: int = 0
    step: int = 1

    def consumed_by(self, asked: int | None) -> int:
        if asked is None:
            return self.default
        above = max(0, asked - self.least)
        return self.least + -(-above // self.step) * self.step


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A GPU as its node's ResourceSlice offers it. `closed`: why it takes no new claim; empty where it does."""

    node: str
    name: str
    share: str
    capacity: Mapping[str, Capacity]
    closed: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.node, self.name

    def __str__(self) -> str:
        return f"GPU {self.name} of node {self.node}"


@dataclass(frozen=True, slots=True)
class Held:
    """What one result of an allocation consumes of a device."""

    device: tuple[str, str]
    consumed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """`name`: namespace/name. `asked`: capacities as requested, in whole units. `held`: empty while it is pending.
    `selects`: it has selectors of its own, which only the scheduler evaluates.

    `share`: empty where the claim names a DeviceClass that is not ours but selects our devices. `for_pod`: it was made
    from a template, for a pod that waits for it.
    """

    name: str
    uid: str
    share: str
    created: datetime
    asked: Mapping[str, int] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    selects: bool = False
    for_pod: bool = False

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Demand:
    """The devices of shares that are delivered by claims, and the claims for them. What is derived is found once."""

    devices: tuple[ClaimDevice, ...] = ()
    claims: tuple[Claim, ...] = ()

    @cached_property
    def by_share(self) -> Mapping[str, "Demand"]:
        """The devices of each share, and the claims that ask for it or have a part of them."""
        devices: dict[str, list[ClaimDevice]] = {}
        claims: dict[str, list[Claim]] = {}
        for device in self.devices:
            devices.setdefault(device.share, []).append(device)
        owner = {device.key: device.share for device in self.devices}
        for claim in self.claims:
            for share in {claim.share, *(owner[held.device] for held in claim.held if held.device in owner)}:
                claims.setdefault(share, []).append(claim)
        return {
            share: Demand(tuple(devices.get(share, ())), tuple(claims.get(share, ())))
            for share in devices.keys() | claims.keys()
        }

    @cached_property
    def used(self) -> Mapping[tuple[str, str], Mapping[str, int]]:
        """What is taken of each device."""
        return consumption(self.claims)

    @cached_property
    def waiting(self) -> tuple[Claim, ...]:
        """The claims that have no device yet."""
        return tuple(claim for claim in self.claims if not claim.held)


@dataclass(frozen=True, slots=True)
class Pending:
    """A claim that fits nowhere. A new `key` means a new event; `message` changes with every other claim."""

    claim: Claim
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class _Gap:
    device: ClaimDevice
    lacking: Mapping[str, tuple[int, int]]
    """Each lacking capacity with (needed, left)."""

    @property
    def order(self) -> tuple[int, float, tuple[str, str]]:
        """Nearest first: fewest capacities lacking, then by the smallest part of what is needed."""
        worst = max((1 - left / need for need, left in self.lacking.values()), default=0.0)
        return len(self.lacking), worst, self.device.key


def pending(demand: Demand, now: datetime) -> list[Pending]:
    """Claims that have waited and fit nowhere: share by share, of each in the order in which they are to be told."""
    claims: list[Pending] = []
    for share, part in sorted(demand.by_share.items()):
        waiting = [claim for claim in part.waiting if claim.share == share and now - claim.created >= GRACE]
        if waiting:
            claims.extend(_explained(waiting, _Offer(part.devices, part.used)))
    return claims


def _explained(claims: list[Claim], offer: "_Offer") -> Iterable[Pending]:
    explained: dict[tuple[bool, frozenset[tuple[str, int]]], Pending | None] = {}
    in_order = sorted(claims, key=lambda claim: (not claim.for_pod, claim.created, claim.name))
    for claim in in_turns(in_order, lambda claim: claim.namespace)[:EXPLAINED]:
        request = claim.selects, frozenset(claim.asked.items())
        if request not in explained:
            if len(explained) == REQUESTS:
                continue
            explained[request] = _explain(claim, offer)
        alike = explained[request]
        if alike is not None:
            yield Pending(claim, alike.key, alike.message)


def due(demand: Demand) -> Iterable[datetime]:
    """When each claim that waits is to be explained."""
    return (claim.created + GRACE for claim in demand.waiting)


def consumption(claims: Iterable[Claim]) -> dict[tuple[str, str], dict[str, int]]:
    """What is taken of each device."""
    used: dict[tuple[str, str], dict[str, int]] = {}
    for claim in claims:
        for held in claim.held:
            taken = used.setdefault(held.device, {})
            for name, amount in held.consumed.items():
                taken[name] = taken.get(name, 0) + amount
    return used


class _Offer:
    """The GPUs of one share, and what is left of each."""

    def __init__(self, devices: Sequence[ClaimDevice], used: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        self.closed = min(
            (device for device in devices if device.closed), key=lambda closed_device: closed_device.key, default=None
        )
        self.takers = 0
        different: dict[object, tuple[ClaimDevice, Mapping[str, int]]] = {}
        for device in devices:
            if device.closed:
                continue
            self.takers += 1
            taken = used.get(device.key, {})
            left = frozenset((name, capacity, taken.get(name, 0)) for name, capacity in device.capacity.items())
            known = different.get(left)
            if known is None or device.key < known[0].key:
                different[left] = device, taken
        self.different = tuple(different.values())
        """The first of GPUs with the same capacities and the same left; with what is taken of it."""


def _explain(claim: Claim, offer: _Offer) -> Pending | None:
    """Why the claim is pending; None: by capacity it fits on some GPU, and it selects none by itself."""
    if not offer.takers and offer.closed is None:
        text = f'no GPU of GpuShare "{claim.share}" is offered: its conditions say why'
        return Pending(claim, "none", text)
    if not offer.takers and offer.closed is not None:
        first = offer.closed
        text = f'no GPU of GpuShare "{claim.share}" takes a client now; {first}: {first.closed}'
        return Pending(claim, f"closed {first.closed}", text)
    gaps = []
    for device, taken in offer.different:
        gap = _gap(claim, device, taken)
        if not gap.lacking:
            return _selecting(claim, device) if claim.selects else None
        gaps.append(gap)
    nearest = min(gaps, key=lambda gap: gap.order)
    lacking = "; ".join(_lack(name, need, left) for name, (need, left) in sorted(nearest.lacking.items()))
    gpus = count_of(offer.takers, "GPU")
    text = f'fits on none of {gpus} of GpuShare "{claim.share}" now; nearest is {nearest.device}: {lacking}'
    if all(_never(gap) for gap in gaps):
        text += "; no GPU of the share has that much even when empty: claim less"
    return Pending(claim, " ".join(sorted(nearest.lacking)), text)


def _selecting(claim: Claim, device: ClaimDevice) -> Pending:
    """Selectors are CEL, which is not evaluated here; a pod that waits for something else is told the same."""
    text = (
        f"its amounts fit on {device} now: unless its pod waits for something else, its own selectors match no GPU "
        "with room; compare them with the attributes that kubectl get resourceslices -o yaml shows"
    )
    return Pending(claim, "selectors", text)


def claim_counts(share: GpuShare, demand: Demand, unplaced: Sequence[Pending]) -> ClaimCounts | None:
    """The counts of the share's status; None where it is not delivered by claims. `unplaced`: of this share."""
    if not share.by_claims:
        return None
    part = demand.by_share.get(share.name, Demand())
    devices = {device.key for device in part.devices}
    used = [taken for key, taken in part.used.items() if key in devices]
    return ClaimCounts(
        allocated=sum(1 for claim in part.claims if any(held.device in devices for held in claim.held)),
        pending=sum(1 for claim in part.waiting if claim.share == share.name),
        threads=_total(names.CAPACITY_THREADS, part.devices, used),
        memory=_total(names.CAPACITY_MEMORY, part.devices, used),
        unplaced=[PendingClaim(claim=item.claim.name, message=item.message[:512]) for item in unplaced[:MOST_UNPLACED]],
    )


def _total(name: str, devices: Iterable[ClaimDevice], used: Iterable[Mapping[str, int]]) -> str:
    taken = sum(amounts.get(name, 0) for amounts in used)
    whole = sum(device.capacity[name].value for device in devices if name in device.capacity)
    if name == names.CAPACITY_MEMORY:
        return f"{format_mib(taken // MIB)}/{format_mib(whole // MIB)}"
    return f"{taken}/{whole}%"


def _gap(claim: Claim, device: ClaimDevice, used: Mapping[str, int]) -> _Gap:
    lacking = {}
    burst = names.CAPACITY_MEMORY_BURST
    if claim.asked.get(burst) and burst not in device.capacity:  # of a share that lets nobody borrow
        lacking[burst] = claim.asked[burst], 0
    for name, capacity in device.capacity.items():
        need, left = capacity.consumed_by(claim.asked.get(name)), capacity.value - used.get(name, 0)
        if need > left:
            lacking[name] = need, left
    return _Gap(device, lacking)


def _never(gap: _Gap) -> bool:
    capacity = gap.device.capacity
    return any(name not in capacity or need > capacity[name].value for name, (need, _) in gap.lacking.items())


_MEMORY = {names.CAPACITY_MEMORY: "memory", names.CAPACITY_MEMORY_BURST: "memory to borrow (memoryBurst)"}


def _lack(name: str, need: int, left: int) -> str:
    if name in _MEMORY:
        missing, need_mib, left_mib = -(-(need - left) // MIB), -(-need // MIB), max(0, left) // MIB
        return (
            f"{format_mib(missing)} of {_MEMORY[name]} lack ({format_mib(need_mib)} asked, {format_mib(left_mib)} left)"
        )
    if name == names.CAPACITY_CLIENTS:
        return "no slot is left (clients.perGpu)"
    unit = " percent" if name == names.CAPACITY_THREADS else ""
    return f"{need - left}{unit} of {name} lack ({need} asked, {max(0, left)} left)"
