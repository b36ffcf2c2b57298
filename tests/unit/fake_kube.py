"""An API server in memory with the methods of `Kube`: what unit tests of every part run against.

As the real one: each write that changes an object gets a new resourceVersion, a changed spec a new generation; a write
with another resourceVersion or uid is a Conflict; what a manager applied before and no longer applies goes; an object
with finalizers stays until the last one is removed; a watch begins after the version that it names; while a request is
under way other tasks run. It knows no schemas and no defaults, a list is one value, and what two managers apply goes
with the first of them.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import jsonpatch

from gpushare.kube.client import EVENTS, KubeError, Object, Resource

T = TypeVar("T")

Key = tuple[Resource, str, str]
"""(resource, namespace, name); the namespace of cluster-scoped objects is empty."""
FORBIDDEN = KubeError(HTTPStatus.FORBIDDEN, "Forbidden", "a policy says no")


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    resource: Resource
    kind: str
    obj: Object


class _Watch:
    """An open watch: woken by each change, ended by an error. `seen`: the version up to which it has been read."""

    def __init__(self, resource: Resource, seen: int) -> None:
        self.resource = resource
        self.seen = seen
        self.wake = asyncio.Event()
        self.error: Exception | None = None


@dataclass(slots=True)
class _Storage:
    """What all connections share. `applied`: what each manager applied last, of an object or its subresource."""

    version: int = 100
    oldest: int = 0
    lags: bool = False
    objects: dict[Key, Object] = field(default_factory=dict)
    applied: dict[tuple[Key, str, str | None], Object] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)
    watches: set[_Watch] = field(default_factory=set)


class FakeKube:
    """One connection to it.

    `requests`: each request as `verb plural/name/subresource?limit=`, in order, failed ones included. `writes`: those
    of them that ask for a change; Events, which tell of one, are left out.
    """

    def __init__(self, storage: _Storage | None = None) -> None:
        self.requests: list[str] = []
        self.writes: list[str] = []
        self.kubernetes = "v1.37.0"
        self.not_served: set[Resource] = set()
        self._storage = storage or _Storage()
        self._failures: dict[str, Exception | None] = {}
        self._may_write: Callable[[], None] = lambda: None

    # -- what a test does and sees

    def connection(self) -> "FakeKube":
        """Another client's connection to the same API server, with requests and failures of its own."""
        return FakeKube(self._storage)

    @property
    def version(self) -> int:
        """That of the last change."""
        return self._storage.version

    @property
    def events(self) -> list[Object]:
        """The stored Events, in the order in which they were created."""
        return self.all(EVENTS)

    def put(self, resource: Resource, obj: Object) -> Object:
        """Creates or replaces the object, as somebody else would; no request is recorded."""
        return self._store(resource, obj["metadata"].get("namespace"), obj)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Deletes the object at once, finalizers or not; without a namespace the only one of that name. KeyError."""
        self._forget(self._only(resource, name, namespace))

    def live(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The stored object; without a namespace the only one of that name. KeyError where there is none."""
        return copy.deepcopy(self._storage.objects[self._only(resource, name, namespace)])

    def has(self, resource: Resource, name: str, namespace: str | None = None) -> bool:
        try:
            return bool(self.live(resource, name, namespace))
        except KeyError:
            return False

    def all(self, resource: Resource) -> list[Object]:
        """The stored objects of a kind, in the order in which they were created."""
        return [copy.deepcopy(obj) for (kind, _, _), obj in self._storage.objects.items() if kind == resource]

    def fail(self, request: str = "", error: Exception | None = None) -> None:
        """Lets each request that begins with `request` raise `error` from now on; without an error it never answers."""
        self._failures[request] = error

    def lag(self) -> None:
        """Lets no watch tell anything from now on, as if the API server were slow to."""
        self._storage.lags = True

    def heal(self) -> None:
        """Ends all failures, and lets watches tell what they have held back."""
        self._failures.clear()
        self._storage.lags = False
        for watch in self._storage.watches:
            watch.wake.set()

    def expire(self) -> None:
        """A watch from an earlier version is answered with 410 Gone from now on."""
        self._storage.oldest = self.version

    def break_watches(self, error: Exception) -> None:
        """Each open watch raises `error`."""
        for watch in self._storage.watches:
            watch.error = error
            watch.wake.set()

    async def followed(self, *resources: Resource) -> None:
        """Waits until the `resources` are watched, and every watch has been read up to now."""
        await self.until(lambda: self._followed(set(resources)))

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits until `holds` is true after a step of every task."""
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - each round is a step of every task
                await asyncio.sleep(0)

    # -- Kube

    async def close(self) -> None:
        """Nothing is open."""

    def guard_writes(self, check: Callable[[], None]) -> None:
        self._may_write = check

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        await self._request("get", resource, name)
        return copy.deepcopy(self._known(resource, name, namespace))

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        try:
            return await self.get(resource, name, namespace)
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object:
        await self._request("list", resource, limit=selectors.get("limit"))
        if resource in self.not_served:
            raise KubeError(HTTPStatus.NOT_FOUND, "NotFound", "the server could not find the requested resource")
        items = [obj for obj in self.all(resource) if _selected(obj, namespace, selectors)]
        limit = int(selectors.get("limit") or len(items))
        return {"metadata": {"resourceVersion": str(self.version)}, "items": items[:limit]}

    async def pages(
        self, resource: Resource, keep: Callable[[Object], T | None], namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[list[T], str]]:
        """Pages of two objects each."""
        answer = await self.list_all(resource, namespace, **selectors)
        items, version = answer["items"], answer["metadata"]["resourceVersion"]
        for first in range(0, max(len(items), 1), 2):
            yield [kept for obj in items[first : first + 2] if (kept := keep(obj)) is not None], version

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selectors: dict[str, str]
    ) -> AsyncIterator[Object]:
        await self._request("watch", resource)
        if int(version) < self._storage.oldest:
            raise KubeError(HTTPStatus.GONE, "Expired", "too old resource version")
        watch = _Watch(resource, int(version))
        self._storage.watches.add(watch)
        try:
            while watch.error is None:
                watch.wake.clear()
                for change in self._unseen(watch):
                    if change.resource == resource and _selected(change.obj, namespace, selectors):
                        yield {"type": change.kind, "object": copy.deepcopy(change.obj)}
                    watch.seen = change.version
                await watch.wake.wait()
            raise watch.error
        finally:
            self._storage.watches.discard(watch)

    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        name = body["metadata"]["name"]
        await self._request("create", resource, name)
        namespace = namespace or body["metadata"].get("namespace")
        if (resource, namespace or "", name) in self._storage.objects:
            raise KubeError(HTTPStatus.CONFLICT, "AlreadyExists", f"{resource.plural} {name} already exists")
        return self._store(resource, namespace, body, dry_run=dry_run)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Object,
        *,
        manager: str,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        await self._request("apply", resource, name, subresource)
        key = resource, namespace or "", name
        known = self._storage.objects.get(key)
        if known is None and subresource:
            raise _not_found(resource, name)
        if known is None and body["metadata"].get("uid"):
            raise KubeError(HTTPStatus.CONFLICT, "Conflict", "uid mismatch: no existing object was found")
        known = known or {"metadata": {"name": name}}
        before = self._storage.applied.get((key, manager, subresource), {})
        kept = _without(known, before, body) if subresource is None else known
        if subresource and subresource in before and subresource in known:
            part = _without(known[subresource], before[subresource], body[subresource])
            kept = {**known, subresource: part}
        result = self._change(resource, namespace, kept, body, subresource)
        self._storage.applied[key, manager, subresource] = copy.deepcopy(body)
        return result

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        *,
        manager: str,
        kind: str = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Object:
        await self._request("patch", resource, name, subresource)
        known = self._known(resource, name, namespace)
        if kind == "json":
            try:
                patched = jsonpatch.apply_patch(copy.deepcopy(known), body)
            except jsonpatch.JsonPatchException as error:
                raise KubeError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", str(error)) from None
            return self._store(resource, namespace, patched, dry_run=dry_run)
        assert isinstance(body, dict)
        return self._change(resource, namespace, known, body, subresource, dry_run=dry_run)

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, uid: str = "") -> None:
        await self._request("delete", resource, name)
        known = self._storage.objects.get((resource, namespace or "", name))
        if known is None or (uid and known["metadata"]["uid"] != uid):
            return
        if known["metadata"].get("finalizers"):
            stamp = {"deletionTimestamp": known["metadata"].get("deletionTimestamp") or "2026-11-22T00:00:00Z"}
            self._store(resource, namespace, _merged(known, {"metadata": stamp}))
        else:
            self._forget((resource, namespace or "", name))

    async def server_version(self) -> str:
        return self.kubernetes

    async def served(self, resource: Resource) -> bool:
        return resource not in self.not_served

    # -- inside

    async def _request(
        self, verb: str, resource: Resource, name: str = "", subresource: str | None = None, limit: str | None = None
    ) -> None:
        words = "/".join(part for part in (resource.plural, name, subresource) if part)
        self.requests.append(f"{verb} {words}" + (f"?limit={limit}" if limit else ""))
        if verb not in ("get", "list", "watch"):
            self._may_write()
        if verb not in ("get", "list", "watch") and resource != EVENTS:
            self.writes.append(self.requests[-1])
        await asyncio.sleep(0)
        for request, error in self._failures.items():
            if f"{verb} {words}".startswith(request):
                if error is not None:
                    raise error
                await asyncio.Event().wait()

    def _unseen(self, watch: _Watch) -> list[_Change]:
        return [] if self._storage.lags else [change for change in self._storage.changes if change.version > watch.seen]

    def _followed(self, resources: set[Resource]) -> bool:
        watched = {watch.resource for watch in self._storage.watches}
        return watched >= resources and all(watch.seen >= self.version for watch in self._storage.watches)

    def _only(self, resource: Resource, name: str, namespace: str | None) -> Key:
        """The key of the stored object. KeyError: there is none, or without a namespace more than one."""
        keys = [
            key
            for key in self._storage.objects
            if key[0] == resource and key[2] == name and namespace in (None, key[1])
        ]
        if len(keys) != 1:
            raise KeyError(f"{len(keys)} {resource.plural} {name}")
        return keys[0]

    def _known(self, resource: Resource, name: str, namespace: str | None) -> Object:
        try:
            return self._storage.objects[resource, namespace or "", name]
        except KeyError:
            raise _not_found(resource, name) from None

    def _change(
        self,
        resource: Resource,
        namespace: str | None,
        known: Object,
        body: Object,
        subresource: str | None,
        dry_run: bool = False,
    ) -> Object:
        """A merge of `body` into `known`; of a subresource, its part alone."""
        metadata = body.get("metadata") or {}
        for guard in ("resourceVersion", "uid"):
            if metadata.get(guard) and metadata[guard] != known["metadata"].get(guard):
                raise KubeError(HTTPStatus.CONFLICT, "Conflict", f"{guard} is not {metadata[guard]}")
        part = body if subresource is None else {subresource: body[subresource]}
        return self._store(resource, namespace, _merged(known, part), dry_run=dry_run)

    def _store(self, resource: Resource, namespace: str | None, obj: Object, *, dry_run: bool = False) -> Object:
        stored = copy.deepcopy(obj)
        metadata = stored["metadata"]
        if namespace:
            metadata["namespace"] = namespace
        key = resource, namespace or "", metadata["name"]
        known = self._storage.objects.get(key)
        metadata["uid"] = (known or stored)["metadata"].get("uid") or f"uid-{metadata['name']}"
        if known is not None and _content(known) == _content(stored):
            return copy.deepcopy(known)
        if dry_run:
            return stored
        self._storage.version += 1
        metadata["resourceVersion"] = str(self.version)
        generation = 0 if known is None else known["metadata"].get("generation", 0)
        metadata["generation"] = generation + (known is None or known.get("spec") != stored.get("spec"))
        self._storage.objects[key] = stored
        self._publish(resource, "ADDED" if known is None else "MODIFIED", stored)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self._forget(key)
        return copy.deepcopy(stored)

    def _forget(self, key: Key) -> None:
        obj = self._storage.objects.pop(key)
        for applied in [applied for applied in self._storage.applied if applied[0] == key]:
            del self._storage.applied[applied]
        self._storage.version += 1
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._publish(key[0], "DELETED", gone)

    def _publish(self, resource: Resource, kind: str, obj: Object) -> None:
        self._storage.changes.append(_Change(self.version, resource, kind, copy.deepcopy(obj)))
        for watch in self._storage.watches:
            watch.wake.set()


def _not_found(resource: Resource, name: str) -> KubeError:
    return KubeError(HTTPStatus.NOT_FOUND, "NotFound", f"{resource.plural} {name} not found")


def _content(obj: Object) -> Object:
    """All that a writer decides."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "generation")}
    return {**obj, "metadata": metadata}


def _merged(known: Object, patch: Object) -> Object:
    """RFC 7386. Good enough for server-side apply of objects with one owner."""
    result = copy.deepcopy(known)
    for key, value in patch.items():
        if isinstance(value, dict):
            result[key] = _merged(result.get(key) or {}, value)
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _without(known: Object, before: Object, now: Object) -> Object:
    """`known` less what was applied `before` and is not applied `now`."""
    result = {}
    for key, value in known.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            value = _without(value, before[key], now.get(key) or {})
            if not value and key not in now:
                continue
        elif key in before and key not in now:
            continue
        result[key] = value
    return result


def _selected(obj: Object, namespace: str | None, selectors: dict[str, Any]) -> bool:
    metadata = obj["metadata"]
    if namespace is not None and metadata.get("namespace", "") != namespace:
        return False
    labels = metadata.get("labels") or {}
    for term in filter(None, str(selectors.get("labelSelector") or "").split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    for term in filter(None, str(selectors.get("fieldSelector") or "").split(",")):
        path, _, value = term.partition("=")
        current: Any = obj
        for part in path.split("."):
            current = (current or {}).get(part)
        if str(current or "") != value:
            return False
    return True
