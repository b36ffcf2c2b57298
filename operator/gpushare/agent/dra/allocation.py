"""The parts of this node's GPUs that the scheduler allocated to a ResourceClaim. Pure.

Guarantees: every part is of our driver and of this node, and there is one part of one GPU for each container that may
use it. Every other claim is refused with a sentence for its user.
"""

import math
from dataclasses import dataclass

from gpushare.api import names
from gpushare.api.quantity import MIB, parse_quantity
from gpushare.kube.client import Object
from gpushare.messages.wording import count_of


class ClaimRefused(Exception):
    """This claim cannot be served here. The text is a whole sentence, which the kubelet puts into the pod's events."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one GPU that one request got. `threads`: percent; `memory_mib`: MiB reserved, rounded down;
    `burst_mib`: MiB that its client may borrow above that. `size`: the share's size that the request names.
    """

    request: str
    device: str
    share_id: str
    threads: int
    memory_mib: int
    burst_mib: int = 0
    size: str | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """`pod_name`, `pod_uid`: of the only pod that may use the claim. `for_slots`: the scheduler made it for extended
    resources.
    """

    uid: str
    namespace: str
    name: str
    pod_name: str
    pod_uid: str
    parts: tuple[Part, ...]
    for_slots: bool

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"


def allocation(claim: Object, uid: str, node: str) -> Allocation:
    """`uid`: of the claim that the kubelet asked for; a later claim of that name has another. Errors: ClaimRefused."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    whole = f"ResourceClaim {metadata['namespace']}/{metadata['name']}"
    if metadata.get("uid") != uid:
        raise ClaimRefused(f"{whole} was made again since its pod was placed: delete the pod")
    results = (((status.get("allocation") or {}).get("devices") or {}).get("results")) or []
    sizes = _sizes(claim)
    parts = tuple(_part(whole, result, node, sizes) for result in results if result.get("driver") == names.DRA_DRIVER)
    for_slots = (metadata.get("annotations") or {}).get(names.ANNOTATION_SCHEDULERS_CLAIM) == "true"
    if not parts:
        raise ClaimRefused(f"{whole} has no device of driver {names.DRA_DRIVER}")
    if len(parts) > 1 and not for_slots:
        raise ClaimRefused(
            f"{whole} has {count_of(len(parts), 'part')} of GPUs: a client reaches one; write a claim for each"
        )
    if len({part.request for part in parts}) < len(parts):
        raise ClaimRefused(f"{whole} has several parts for one request: a client reaches one GPU; write a count of 1")
    pod_name, pod_uid = _pod(whole, status)
    return Allocation(uid, metadata["namespace"], metadata["name"], pod_name, pod_uid, parts, for_slots)


def _sizes(claim: Object) -> dict[str, str]:
    """The size that each request names by its DeviceClass."""
    sizes = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        class_name = (request.get("exactly") or {}).get("deviceClassName")
        _, size = names.parse_device_class(str(class_name or "")) or ("", None)
        if size is not None:
            sizes[str(request.get("name") or "")] = size
    return sizes


def _part(whole: str, result: Object, node: str, sizes: dict[str, str]) -> Part:
    consumed = result.get("consumedCapacity") or {}
    if result.get("pool") != node:
        raise ClaimRefused(f"{whole} is allocated on node {result.get('pool')}, not on {node}")
    if result.get("adminAccess"):
        raise ClaimRefused(f"{whole} asks for administrative access, which there is none of: remove adminAccess")
    missing = [name for name in (names.CAPACITY_THREADS, names.CAPACITY_MEMORY) if name not in consumed]
    if missing:
        raise ClaimRefused(
            f"{whole} was allocated without {' and '.join(missing)}: the cluster's feature gate DRAConsumableCapacity "
            "has to be on, in scheduler and API server"
        )
    return Part(
        request=str(result.get("request") or ""),
        device=str(result.get("device") or ""),
        share_id=str(result.get("shareID") or ""),
        threads=_whole(whole, consumed, names.CAPACITY_THREADS),
        memory_mib=_whole(whole, consumed, names.CAPACITY_MEMORY) // MIB,
        burst_mib=_burst_mib(whole, consumed),
        size=sizes.get(str(result.get("request") or "")),
    )


def _pod(whole: str, status: Object) -> tuple[str, str]:
    """(name, uid)."""
    users = status.get("reservedFor") or []
    if len(users) != 1 or users[0].get("resource") != "pods":
        raise ClaimRefused(f"{whole} is reserved for {len(users)} users: a claim is one container's of one pod")
    return str(users[0].get("name")), str(users[0].get("uid"))


def _burst_mib(whole: str, consumed: Object) -> int:
    """What the claim may borrow; 0 unless its GPU is of a share that lets clients borrow."""
    if names.CAPACITY_MEMORY_BURST not in consumed:
        return 0
    return _whole(whole, consumed, names.CAPACITY_MEMORY_BURST) // MIB


def _whole(whole: str, consumed: Object, name: str) -> int:
    try:
        return math.floor(parse_quantity(str(consumed[name])))
    except ValueError as error:
        raise ClaimRefused(f"{whole} was allocated {name} that cannot be read: {error}") from None
