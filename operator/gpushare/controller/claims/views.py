"""ResourceSlices and ResourceClaims, read from the API's objects into the fleet's input. Pure.

Objects that cannot be read are left out: they were made by another release, or are not for us.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from gpushare.api import names
from gpushare.api.quantity import LONGEST, parse_quantity
from gpushare.api.timestamps import parse_timestamp
from gpushare.kube.claims import allocation_results, requests_of
from gpushare.kube.resources import Object
from gpushare.planner.model import EPOCH
from gpushare.planner.pending import Capacity, Claim, ClaimDevice, Held


def devices(resource_slice: Object) -> Iterable[ClaimDevice]:
    """The devices of a slice; none where its pool is not its node's own, which no agent writes."""
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


def claim(obj: Object) -> Claim | None:
    """Returns None for a claim that neither names a share of ours nor has a device of ours."""
    metadata = obj["metadata"]
    held = tuple(_held(result) for result in allocation_results(obj))
    share, asked = next(_asked(obj), ("", {}))
    if not share and not held:
        return None
    return Claim(
        name=f"{metadata.get('namespace', '')}/{metadata['name']}",
        uid=str(metadata.get("uid") or ""),
        share=share,
        created=_moment(str(metadata.get("creationTimestamp") or "")),
        asked=asked,
        held=held,
        selects=any(request.get("selectors") for request in requests_of(obj)),
        for_pod=any(owner.get("kind") == "Pod" for owner in metadata.get("ownerReferences") or ()),
    )


def _asked(obj: Object) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields (share, capacities) of each request of a class of ours."""
    for request in requests_of(obj):
        parsed = names.parse_device_class(str(request.get("deviceClassName") or ""))
        if parsed is not None:
            yield parsed[0], _whole((request.get("capacity") or {}).get("requests") or {})


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
    """The amount, rounded up; 0 where it cannot be read. Claims repeat few amounts, and to parse them takes longest."""
    try:
        return math.ceil(parse_quantity(text))
    except ValueError:
        return 0


def _moment(text: str) -> datetime:
    try:
        return parse_timestamp(text)
    except ValueError:
        return EPOCH
