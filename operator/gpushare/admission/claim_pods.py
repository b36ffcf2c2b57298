"""Why a pod's use of our ResourceClaims is refused. Each rule yields sentences: field, refused value, what to do.

Only claims that exist, or whose template does, can be judged; the node's agent checks again before a container starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpushare.admission.answer import quoted
from gpushare.admission.claims import classes_of
from gpushare.admission.containers import Container
from gpushare.admission.data import AdmissionData
from gpushare.api import names

_NVIDIA_CLASSES = ".nvidia.com"


def our_claims(container: Container, world: AdmissionData) -> list[str]:
    """Names, in spec.resourceClaims, of the claims of ours that the container uses."""
    return [name for name in container.claims if _is_ours(world.claims.get(name))]


def claim_problems(container: Container, others: Sequence[Container], world: AdmissionData) -> Iterator[str]:
    """What is wrong with how `container` uses claims; `others`: those of the pod before it."""
    ours = our_claims(container, world)
    field = f"{container.field}.resources.claims"
    if not ours:
        return
    if len(ours) > 1:
        listed = ", ".join(map(quoted, ours))
        yield f"{field}: {listed}: a container reaches one GPU by one claim of gpushare's; keep one of them"
    if container.slots:
        slots = ", ".join(container.slots)
        yield f"{field}: {quoted(ours[0])} beside {slots}: a container reaches one GPU by one of the two; keep one"
    for name in ours:
        users = [other for other in others if name in other.claims]
        if users:
            yield (
                f"{field}: {quoted(name)} is used by {users[0].field} already: a claim is one container's; write"
                " another entry in spec.resourceClaims"
            )
        if len(_requests(world.claims[name])) > 1:
            yield f"{field}: {quoted(name)} has several requests: a claim of gpushare's classes has exactly one"
    for name in container.claims:
        beside = [one for one in classes_of(world.claims.get(name) or {}) if one.endswith(_NVIDIA_CLASSES)]
        if beside:
            yield (
                f"{field}: {quoted(name)} is a claim of DeviceClass {quoted(beside[0])}: a whole NVIDIA GPU beside"
                " gpushare's claim would bypass its limits; keep one of the two"
            )


def _is_ours(spec: Mapping[str, Any] | None) -> bool:
    return any(map(names.parse_device_class, classes_of(spec or {})))


def _requests(spec: Mapping[str, Any]) -> list[Any]:
    return list((spec.get("devices") or {}).get("requests") or [])
