"""An API server in memory with the methods of `Kube`: what unit tests of every part run against.

As the real one: each write that changes an object gets a new resourceVersion, a changed spec a new generation; a write
with another resourceVersion or uid is a Conflict; an object with finalizers stays until the last one is removed; a
watch begins after the version that it names. It knows no schemas, defaults or field owners.
"""

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import jsonpatch

from gpushare.kube.client import KubeError, Object, Resource

Key = tuple[Resource, str, str]
"""(resource, namespace, name); the namespace of cluster-scoped objects is empty."""


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


class FakeKube:
    """`requests`: each request as `verb plural/name/subresource`, in order, failed ones included."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.version = 100
        self.kubernetes = "v1.37.0"
        self.not_served: set[Resource] = set()
        self._objects: dict[Key, Object] = {}
        self._failures: dict[str, Exception | None] = {}
        self._changes: list[_Change] = []
        self._watches: set[_Watch] = set()
        self._oldest = 0

    # -- what a test does and sees

    @property
    def writes(self) -> list[str]:
        return [request for request in self.requests if request.split()[0] not in ("get", "list", "watch")]

    def put(self, resource: Resource, obj: Object) -> Object:
        """Creates or replaces the object, as somebody else would; no request is recorded."""
        return self._store(resource, obj["metadata"].get("namespace"), obj)

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        """Deletes the object at once, finalizers or not."""
        self._forget((resource, namespace or "", name))

    def live(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """The stored object. KeyError where there is none."""
        return self._objects[resource, namespace or "", name]

    def all(self, resource: Resource) -> list[Object]:
        """The stored objects of a kind, in the order in which they were created."""
        return [obj for (kind, _, _), obj in self._objects.items() if kind == resource]

    def fail(self, request: str = "", error: Exception | None = None) -> None:
        """From now on each request that begins with `request` raises `error`; without one it never answers."""
        self._failures[request] = error

    def heal(self) -> None:
        """Ends all failures."""
        self._failures.clear()

    def expire(self) -> None:
        """A watch from an earlier version is answered with 410 Gone from now on."""
        self._oldest = self.version

    def break_watches(self, error: Exception) -> None:
        """Each open watch raises `error`."""
        for watch in self._watches:
            watch.error = error
            watch.wake.set()

    async def followed(self, *resources: Resource) -> None:
        """Waits until the `resources` are watched, and every watch has been read up to now."""
        async with asyncio.timeout(5):
            while not self._followed(set(resources)):  # noqa: ASYNC110 - each round is a step of every task
                await asyncio.sleep(0)

    # -- Kube

    async def close(self) -> None:
        """Nothing is open."""

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
        await self._request("list", resource)
        items = [obj for obj in self.all(resource) if _selected(obj, namespace, selectors)]
        limit = int(selectors.get("limit") or len(items))
        return {"metadata": {"resourceVersion": str(self.version)}, "items": copy.deepcopy(items[:limit])}

    async def pages(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[list[Object], str]]:
        """Two objects each."""
        answer = await self.list_all(resource, namespace, **selectors)
        items, version = answer["items"], answer["metadata"]["resourceVersion"]
        for first in range(0, max(len(items), 1), 2):
            yield items[first : first + 2], version

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selectors: dict[str, str]
    ) -> AsyncIterator[Object]:
        await self._request("watch", resource)
        if int(version) < self._oldest:
            raise KubeError(HTTPStatus.GONE, "Expired", "too old resource version")
        watch = _Watch(resource, int(version))
        self._watches.add(watch)
        try:
            while watch.error is None:
                watch.wake.clear()
                for change in [change for change in self._changes if change.version > watch.seen]:
                    if change.resource == resource and _selected(change.obj, namespace, selectors):
                        yield {"type": change.kind, "object": copy.deepcopy(change.obj)}
                    watch.seen = change.version
                await watch.wake.wait()
            raise watch.error
        finally:
            self._watches.discard(watch)

    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        name = body["metadata"]["name"]
        await self._request("create", resource, name)
        namespace = namespace or body["metadata"].get("namespace")
        if (resource, namespace or "", name) in self._objects:
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
        known = self._objects.get((resource, namespace or "", name))
        if known is None and (subresource or body["metadata"].get("uid")):
            raise _not_found(resource, name)
        return self._change(resource, namespace, known or {"metadata": {"name": name}}, body, subresource)

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
        known = self._objects.get((resource, namespace or "", name))
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

    async def _request(self, verb: str, resource: Resource, name: str = "", subresource: str | None = None) -> None:
        words = "/".join(part for part in (resource.plural, name, subresource) if part)
        self.requests.append(f"{verb} {words}")
        for request, error in self._failures.items():
            if self.requests[-1].startswith(request):
                if error is not None:
                    raise error
                await asyncio.Event().wait()

    def _followed(self, resources: set[Resource]) -> bool:
        watched = {watch.resource for watch in self._watches}
        return watched >= resources and all(watch.seen >= self.version for watch in self._watches)

    def _known(self, resource: Resource, name: str, namespace: str | None) -> Object:
        try:
            return self._objects[resource, namespace or "", name]
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
        for field in ("resourceVersion", "uid"):
            if metadata.get(field) and metadata[field] != known["metadata"].get(field):
                raise KubeError(HTTPStatus.CONFLICT, "Conflict", f"{field} is not {metadata[field]}")
        part = body if subresource is None else {subresource: body[subresource]}
        return self._store(resource, namespace, _merged(known, part), dry_run=dry_run)

    def _store(self, resource: Resource, namespace: str | None, obj: Object, *, dry_run: bool = False) -> Object:
        stored = copy.deepcopy(obj)
        metadata = stored["metadata"]
        if namespace:
            metadata["namespace"] = namespace
        key = resource, namespace or "", metadata["name"]
        known = self._objects.get(key)
        metadata["uid"] = (known or stored)["metadata"].get("uid") or f"uid-{metadata['name']}"
        if known is not None and _content(known) == _content(stored):
            return copy.deepcopy(known)
        if dry_run:
            return stored
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        generation = 0 if known is None else known["metadata"].get("generation", 0)
        metadata["generation"] = generation + (known is None or known.get("spec") != stored.get("spec"))
        self._objects[key] = stored
        self._publish(resource, "ADDED" if known is None else "MODIFIED", stored)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self._forget(key)
        return copy.deepcopy(stored)

    def _forget(self, key: Key) -> None:
        obj = self._objects.pop(key)
        self.version += 1
        gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self._publish(key[0], "DELETED", gone)

    def _publish(self, resource: Resource, kind: str, obj: Object) -> None:
        self._changes.append(_Change(self.version, resource, kind, copy.deepcopy(obj)))
        for watch in self._watches:
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
        found: Any = obj
        for part in path.split("."):
            found = (found or {}).get(part)
        if str(found or "") != value:
            return False
    return True
