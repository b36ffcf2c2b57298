"""Follow one kind for ever: all of it as a dict, or its changes alone.

Guarantees of a Reflector: `objects` is complete once `synced` is set; every later change calls `changed`. A lost
connection or an expired version leads to a new list, with back-off; in between `objects` keeps what was known last.
"""

import asyncio
import logging
from collections.abc import Callable

from gpushare.kube.client import API_ERRORS, Kube, KubeError, Object, Resource

LOG = logging.getLogger(__name__)
FIRST_BACKOFF = 0.5
LAST_BACKOFF = 15.0

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class _Following:
    """Watches one kind from some version on, and begins again whenever that breaks off."""

    def __init__(self, kube: Kube, resource: Resource, namespace: str | None, selectors: dict[str, str]) -> None:
        self._kube = kube
        self._resource = resource
        self._namespace = namespace
        self._selectors = selectors

    async def run(self) -> None:
        """Runs until cancelled."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                version = await self._begin()
                backoff = FIRST_BACKOFF
                while True:
                    version = await self._watch(version)
            except (*API_ERRORS, ValueError) as error:
                if not (isinstance(error, KubeError) and error.gone):
                    LOG.warning("watch of %s broke off, again in %.1f s: %s", self._resource.plural, backoff, error)
                self._broke_off(error)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)

    async def _watch(self, version: str) -> str:
        """Follows one watch request to its end; returns the last version seen."""
        async for event in self._kube.watch(self._resource, self._namespace, version, self._selectors):
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
            self._reached(version)
        return version

    async def _begin(self) -> str:
        """The version to watch from."""
        raise NotImplementedError

    def _take(self, kind: str, obj: Object) -> None:
        """`kind`: ADDED, MODIFIED or DELETED."""
        raise NotImplementedError

    def _reached(self, version: str) -> None:
        """Everything up to `version` was taken."""

    def _broke_off(self, error: Exception) -> None:
        """It is about to begin again."""


class Reflector(_Following):
    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        changed: Callable[[], None],
        namespace: str | None = None,
        prune: Callable[[Object], Object | None] | None = None,
        **selectors: str,
    ) -> None:
        """`selectors`: labelSelector, fieldSelector. `changed` is called in the event loop and must not block.

        `prune`: what to keep of an object, of a kind of which there may be many; None: nothing.
        """
        super().__init__(kube, resource, namespace, selectors)
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self._changed = changed
        self._prune = prune or _whole

    async def _begin(self) -> str:
        answer = await self._kube.list_all(self._resource, self._namespace, **self._selectors)
        self.objects = {key_of(item): kept for item in answer.get("items") or [] if (kept := self._prune(item))}
        self.synced.set()
        self._changed()
        return str(answer["metadata"]["resourceVersion"])

    def observe(self, obj: Object) -> None:
        """An answer of the API server, known before its event comes."""
        known = self.objects.get(key_of(obj))
        if known is None or _version(known) < _version(obj):
            self.objects[key_of(obj)] = obj
            self._changed()

    def _take(self, kind: str, obj: Object) -> None:
        before = self.objects.get(key_of(obj))
        after = None if kind == "DELETED" else self._prune(obj)
        if after is None:
            if before is not None and _version(before) <= _version(obj):
                del self.objects[key_of(obj)]
        elif before is None or _version(before) <= _version(after):
            self.objects[key_of(obj)] = after
        if before is not None or after is not None:
            self._changed()


def _whole(obj: Object) -> Object | None:
    return obj


def _version(obj: Object) -> int:
    """Resource versions of one kind are comparable as integers (Kubernetes API concepts, since 1.35 by promise)."""
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


class Follower(_Following):
    """Tells what is made or changed from its start on, and keeps nothing: for a kind that may be many, such as events.

    Goes on where it was after a lost connection; what happened before an expired version is lost.
    """

    def __init__(
        self, kube: Kube, resource: Resource, seen: Callable[[Object], None], namespace: str, **selectors: str
    ) -> None:
        """`seen` is called in the event loop and must not block."""
        super().__init__(kube, resource, namespace, selectors)
        self._seen = seen
        self._last = ""

    async def _begin(self) -> str:
        if not self._last:
            # Of the whole namespace, and of one object: with a selector the server would search for one that fits.
            answer = await self._kube.list_all(self._resource, self._namespace, limit="1")
            self._last = str(answer["metadata"]["resourceVersion"])
        return self._last

    def _take(self, kind: str, obj: Object) -> None:
        if kind != "DELETED":
            self._seen(obj)

    def _reached(self, version: str) -> None:
        self._last = version

    def _broke_off(self, error: Exception) -> None:
        if isinstance(error, KubeError):
            self._last = ""
