"""The operator's copy of namespaces, our DeviceClasses, templates and ResourceSlices, and the claims for our devices.

Watched only once a share is delivered by ResourceClaim. Of each namespace and claim only what a plan reads is kept, and
nothing of claims for other devices.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpushare.api import names
from gpushare.controller.writes import RENDERED, stamp_of
from gpushare.kube.cache.kept import kept_namespace
from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.cache.store import Key
from gpushare.kube.claims import allocation_results, requested_classes, requests_of
from gpushare.kube.resources import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Object,
    Resource,
)

if TYPE_CHECKING:
    from gpushare.kube.client import Kube

_OURS = {"labelSelector": names.LABEL_SHARE}
_SELECTORS: dict[Resource, dict[str, str]] = {
    DEVICE_CLASSES: _OURS,
    CLAIM_TEMPLATES: _OURS,
    NAMESPACES: {},
    RESOURCE_CLAIMS: {},
    RESOURCE_SLICES: {"fieldSelector": f"spec.driver={names.DRA_DRIVER}"},
}
# Not its version: nobody reads that, and with it every change of a label would lead to a new plan.
_READ = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
_RESULT = ("driver", "pool", "device", "consumedCapacity")


class ClaimCache:
    """`changed` is called in the event loop when anything that is kept changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._reflectors: dict[Resource, Reflector] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def followed(self) -> bool:
        return bool(self._reflectors)

    @property
    def known(self) -> bool:
        """Everything has been listed. If False, a missing object means nothing."""
        return self.followed and all(reflector.synced.is_set() for reflector in self._reflectors.values())

    def follow(self, kube: "Kube") -> None:
        """Begins to watch at the first call; `close` ends it."""
        if self.followed:
            return
        for resource, selectors in _SELECTORS.items():
            reflector = Reflector(kube, resource, self._changed, prune=_PRUNED.get(resource), **selectors)
            self._reflectors[resource] = reflector
            self._tasks.append(asyncio.create_task(reflector.run(), name=f"follow {resource.plural}"))

    def check(self) -> None:
        """Raises what ended a watch, if anything did: its objects would only grow old."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def all(self, resource: Resource) -> dict[Key, Object]:
        """By (namespace, name)."""
        reflector = self._reflectors.get(resource)
        return {} if reflector is None else reflector.objects

    def observe(self, resource: Resource, obj: Object) -> None:
        """The answer to a write of ours, until its event comes."""
        reflector = self._reflectors.get(resource)
        if reflector is not None:
            reflector.observe(obj)

    def allocated(self) -> frozenset[tuple[str, str]] | None:
        """(pool, device) of each of our devices that a claim was allocated; None while that is not known."""
        if not self.followed:
            return frozenset()
        if not self.known:
            return None
        return frozenset(
            (result["pool"], result["device"])
            for claim in self.all(RESOURCE_CLAIMS).values()
            for result in allocation_results(claim)
        )


def _pruned_claim(claim: Object) -> Object | None:
    """None for a claim that concerns none of our devices."""
    if not allocation_results(claim) and not any(map(names.parse_device_class, requested_classes(claim))):
        return None
    metadata = {key: claim["metadata"][key] for key in _READ if key in claim["metadata"]}
    requests = [{"exactly": _pruned_request(request)} for request in requests_of(claim)]
    results = [{key: result[key] for key in _RESULT if key in result} for result in allocation_results(claim)]
    status = {"allocation": {"devices": {"results": results}}} if results else {}
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}, "status": status}


def _pruned_request(request: Object) -> Object:
    """Of selectors, which may have 10 kB each, only that there are some."""
    kept = {key: request[key] for key in ("deviceClassName", "capacity") if key in request}
    return kept | ({"selectors": [{}]} if request.get("selectors") else {})


def _pruned_template(template: Object) -> Object:
    """Without what it asks for: a template is compared by its stamp, and there is one for each size and namespace."""
    metadata = template["metadata"]
    kept = {key: metadata[key] for key in (*_READ, "labels", "ownerReferences") if key in metadata}
    return {"metadata": {**kept, "annotations": {RENDERED: stamp_of(template)}}}


_PRUNED = {RESOURCE_CLAIMS: _pruned_claim, NAMESPACES: kept_namespace, CLAIM_TEMPLATES: _pruned_template}
