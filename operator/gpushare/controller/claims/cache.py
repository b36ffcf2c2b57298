"""The operator's copy of what delivery by ResourceClaim needs: namespaces, DeviceClasses, templates, slices and claims.

Watched only once a share is delivered so. Of each namespace only what a plan reads is kept, and nothing of claims for
other devices. There may be ten claims for each node, which come and go all the time: what a plan asks of all of them is
kept current change by change, so a snapshot reads none of them again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpushare.api import names
from gpushare.controller.claims.views import claim, devices
from gpushare.controller.writes import RENDERED, stamp_of
from gpushare.kube.cache.kept import kept_namespace
from gpushare.kube.cache.reflector import ListWatch
from gpushare.kube.cache.store import Key, Store
from gpushare.kube.resources import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Object,
    Resource,
)
from gpushare.planner.pending import Claim, ClaimDevice, Demand

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
_OF_TEMPLATE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "labels", "ownerReferences")
NONE: Mapping[str, frozenset[str]] = MappingProxyType({})

Kept = TypeVar("Kept")
Item = TypeVar("Item")


class _Gathered(Store[Kept], Generic[Kept, Item]):
    """A store that gives out all its items together."""

    def __init__(self, keep: Callable[[Object], Kept | None], changed: Callable[[], None]) -> None:
        super().__init__(keep, changed)
        self._all: tuple[Item, ...] = ()
        self._gathered_at = 0

    def all(self) -> tuple[Item, ...]:
        """All items, as the same object until one changes."""
        if self._gathered_at != self.changes:
            self._all, self._gathered_at = tuple(self._items()), self.changes
        return self._all

    def _items(self) -> Iterable[Item]:
        raise NotImplementedError


class SliceStore(_Gathered[tuple[ClaimDevice, ...], ClaimDevice]):
    """The devices of each ResourceSlice of ours."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(lambda obj: tuple(devices(obj)) or None, changed)

    def _items(self) -> Iterable[ClaimDevice]:
        return chain.from_iterable(self.objects.values())


class ClaimStore(_Gathered[Claim, Claim]):
    """The claims that ask for our devices or have some."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(claim, changed)
        self._held: dict[str, dict[str, int]] = {}
        """How many parts of a device claims have, by pool and device."""
        self._allocated: Mapping[str, frozenset[str]] = NONE
        self._moved: set[str] = set()
        """Pools of which `_allocated` is to be found again."""

    def allocated(self) -> Mapping[str, frozenset[str]]:
        """The devices that claims have, by pool. What was given out is not changed any more."""
        if self._moved:
            allocated = dict(self._allocated)
            for pool in self._moved:
                if pool in self._held:
                    allocated[pool] = frozenset(self._held[pool])
                else:
                    allocated.pop(pool, None)
            self._allocated, self._moved = allocated, set()
        return self._allocated

    def _set(self, key: Key, version: int, kept: Claim | None) -> bool:
        before = self.objects.get(key)
        if not super()._set(key, version, kept):
            return False
        had, has = before.held if before is not None else (), kept.held if kept is not None else ()
        for part in has:
            self._count(*part.device, 1)
        for part in had:
            self._count(*part.device, -1)
        return True

    def _items(self) -> Iterable[Claim]:
        return self.objects.values()

    def _count(self, pool: str, device: str, more: int) -> None:
        parts = self._held.setdefault(pool, {})
        before = parts.get(device, 0)
        parts[device] = before + more
        if not before or not parts[device]:
            self._moved.add(pool)
        if not parts[device]:
            del parts[device]
        if not parts:
            del self._held[pool]


class ClaimCache:
    """`changed` is called in the event loop when anything that is kept changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._slices = SliceStore(changed)
        self._claims = ClaimStore(changed)
        self._stores: dict[Resource, Store[Any]] = {
            DEVICE_CLASSES: Store[Object](_whole, changed),
            CLAIM_TEMPLATES: Store[Object](_pruned_template, changed),
            NAMESPACES: Store[Object](kept_namespace, changed),
            RESOURCE_CLAIMS: self._claims,
            RESOURCE_SLICES: self._slices,
        }
        self._watches: list[ListWatch] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._demand = Demand()

    @property
    def followed(self) -> bool:
        return bool(self._watches)

    @property
    def known(self) -> bool:
        """Tells whether everything has been listed. If not, a missing object means nothing."""
        return self.followed and all(watch.synced.is_set() for watch in self._watches)

    def follow(self, kube: "Kube") -> None:
        """Begins to watch at the first call; `close` ends it."""
        if self.followed:
            return
        for resource, selectors in _SELECTORS.items():
            watch = ListWatch(kube, resource, self._stores[resource], **selectors)
            self._watches.append(watch)
            self._tasks.append(asyncio.create_task(watch.run(), name=f"follow {resource.plural}"))

    def check(self) -> None:
        """Raises what ended a watch, if anything did: its objects would only grow old."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def all(self, resource: Resource) -> Mapping[Key, Object]:
        """Namespaces, DeviceClasses or templates, by (namespace, name)."""
        return self._stores[resource].objects

    def versions(self) -> dict[Resource, dict[Key, int]]:
        """The versions of DeviceClasses; other objects are never changed."""
        return {DEVICE_CLASSES: self._stores[DEVICE_CLASSES].versions()}

    def observe(self, resource: Resource, obj: Object) -> None:
        """Takes the answer to a write of ours, until its event comes."""
        if self.followed and resource in self._stores:
            self._stores[resource].observe(obj)

    def allocated(self) -> Mapping[str, frozenset[str]] | None:
        """Our devices that claims were allocated, by pool; None while that is not known."""
        if not self.followed:
            return NONE
        return self._claims.allocated() if self.known else None

    def demand(self) -> Demand:
        """What claims ask for: empty until all is listed, and the same object until a claim or device changes."""
        if not self.known:
            return Demand()
        offered, claims = self._slices.all(), self._claims.all()
        if offered is not self._demand.devices or claims is not self._demand.claims:
            self._demand = Demand(offered, claims)
        return self._demand


def _whole(obj: Object) -> Object:
    return obj


def _pruned_template(template: Object) -> Object:
    """A template without what it asks for: it is compared by its stamp, and there is one for each size and namespace.

    Its version is left out, too: nothing reads that, and with it every change of a label would lead to a new plan.
    """
    kept = {key: template["metadata"][key] for key in _OF_TEMPLATE if key in template["metadata"]}
    return {"metadata": {**kept, "annotations": {RENDERED: stamp_of(template)}}}
