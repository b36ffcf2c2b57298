"""ResourceSlices and ResourceClaims, read from the API's objects into the fleet's input. Pure.

Objects that cannot be read are left out: they were made by another release, or are not for us.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from gpushare.api import names
from gpushare.api.quantity import LONGEST, parse_quantity
from gpushare.api.timestamps import parse_timestamp
from gpushare.controller.claims.cache import ClaimCache
from gpushare.fleet.model import EPOCH
from gpushare.fleet.pending import Capacity, Claim, ClaimDevice, Demand, Held
from gpushare.kube.cache.store import Key
from gpushare.kube.claims import allocation_results, requests_of
from gpushare.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Object

Read = TypeVar("Read")


class ClaimReader:
    """Reads each object once: what was read of one that is the same as before is used again."""

    def __init__(self) -> None:
        self._slices: dict[Key, tuple[Object, tuple[ClaimDevice, ...]]] = {}
        self._claims: dict[Key, tuple[Object, tuple[Claim, ...]]] = {}
        self._demand = Demand()

    def demand(self, claims: ClaimCache) -> Demand:
        """Empty until everything has been listed; the same object until something changes."""
        if not claims.known:
            return Demand()
        slices, slices_changed = _read(self._slices, claims.all(RESOURCE_SLICES), devices)
        objects, claims_changed = _read(self._claims, claims.all(RESOURCE_CLAIMS), claim)
        if slices_changed or claims_changed:
            self._slices, self._claims = slices, objects
            self._demand = Demand(
                tuple(sorted((it for _, found in slices.values() for it in found), key=lambda device: device.key)),
                tuple(sorted((it for _, found in objects.values() for it in found), key=lambda claim: claim.name)),
            )
        return self._demand


def _read(
    before: Mapping[Key, tuple[Object, tuple[Read, ...]]],
    objects: Mapping[Key, Object],
    read: Callable[[Object], Iterable[Read]],
) -> tuple[dict[Key, tuple[Object, tuple[Read, ...]]], bool]:
    """What was read of each object, with the object; and whether that differs from `before`."""
    found, changed = {}, len(before) != len(objects)
    for key, obj in objects.items():
        known = before.get(key)
        if known is None or known[0] is not obj:
            known, changed = (obj, tuple(read(obj))), True
        found[key] = known
    return found, changed


def devices(resource_slice: Object) -> Iterable[ClaimDevice]:
    """None of a slice whose pool is not its node's own: no agent writes such a one."""
    spec = resource_slice.get("spec") or {}
    pool = str((spec.get("pool") or {}).get("name") or "")
    if pool != spec.get("nodeName"):
        return
    for item in spec.get("devices") or []:
        attributes = item.get("attributes") or {}
        closed = [str(taint.get("value") or taint.get("key") or "") for taint in item.get("taints") or []]
        yield ClaimDevice(
            node=pool,
            name=str(item.get("name") or ""),
            share=str((attributes.get(names.ATTRIBUTE_SHARE) or {}).get("string") or ""),
            capacity={name: _capacity(body) for name, body in (item.get("capacity") or {}).items()},
            closed=closed[0] if closed else "",
        )


def claim(obj: Object) -> Iterable[Claim]:
    """None where it neither names a share of ours nor has a device of ours."""
    metadata = obj["metadata"]
    held = tuple(_held(result) for result in allocation_results(obj))
    share, asked = next(_asked(obj), ("", {}))
    if share or held:
        yield Claim(
            name=f"{metadata.get('namespace', '')}/{metadata['name']}",
            uid=str(metadata.get("uid") or ""),
            share=share,
            created=_moment(str(metadata.get("creationTimestamp") or "")),
            asked=asked,
            held=held,
            selects=any(request.get("selectors") for request in requests_of(obj)),
        )


def _asked(obj: Object) -> Iterator[tuple[str, dict[str, int]]]:
    """(share, capacities) of each request of a class of ours."""
    for request in requests_of(obj):
        found = names.parse_device_class(str(request.get("deviceClassName") or ""))
        if found is not None:
            yield found[0], _whole((request.get("capacity") or {}).get("requests") or {})


def _held(result: Object) -> Held:
    return Held((str(result.get("pool")), str(result.get("device"))), _whole(result.get("consumedCapacity") or {}))


def _capacity(body: Mapping[str, Any]) -> Capacity:
    policy = body.get("requestPolicy") or {}
    bounds = policy.get("validRange") or {}
    value = _number(body.get("value"))
    return Capacity(
        value=value,
        default=_number(policy["default"]) if "default" in policy else value,
        least=_number(bounds.get("min")),
        step=max(1, _number(bounds.get("step", "1"))),
    )


def _whole(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {name: _number(value) for name, value in quantities.items()}


def _number(value: Any) -> int:
    text = str(value or 0)
    return _parsed(text) if len(text) <= LONGEST else 0


@lru_cache(maxsize=4096)
def _parsed(text: str) -> int:
    """Rounded up; 0 where it cannot be read. Claims repeat few amounts, and parsing is most of reading them."""
    try:
        return math.ceil(parse_quantity(text))
    except ValueError:
        return 0


def _moment(text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError:
        return EPOCH
