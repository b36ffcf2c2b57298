"""Follow one kind until cancelled: into a store, or its changes alone.

Guarantees of a ListWatch: the store is complete once `synced` is set. A lost connection or an expired version leads to
a new list, with back-off; in between the store keeps what was known last. Where the store keeps a part of each object
alone, no more is in memory at a time than one page of a list as text and one of its objects, or one event.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpushare.kube.cache.store import Entry, Key, Store
from gpushare.kube.resources import KubeError, Object, Resource

if TYPE_CHECKING:
    from gpushare.kube.client import Kube

__all__ = ["Follower", "Key", "ListWatch", "Reflector"]

LOG = logging.getLogger(__name__)
FIRST_BACKOFF = 0.5
LAST_BACKOFF = 15.0
SHORT_SECONDS = 1.0
"""A watch that ends sooner, without an event, is not begun anew at once; client-go's measure."""
MOST_DOUBLINGS = 10
MOST_REFUSALS = 20
"""Refusals in a row of the version that a Follower goes on from: about four minutes with back-off. The API server keeps
versions for five by default, so little is lost, and one that it refuses for ever holds nobody up for longer."""


class _Following:
    """Watches one kind from some version on, and begins again whenever that breaks off."""

    def __init__(
        self,
        kube: "Kube",
        resource: Resource,
        namespace: str | None,
        selectors: dict[str, str],
        first_backoff: float = FIRST_BACKOFF,
    ) -> None:
        self._kube = kube
        self._resource = resource
        self._namespace = namespace
        self._selectors = selectors
        self._first_backoff = first_backoff
        self._failures = 0
        """How often in a row it broke off, before the API server answered."""

    async def run(self) -> None:
        """Runs until cancelled."""
        from gpushare.kube.client import API_ERRORS  # here, since it brings aiohttp, which a single list does without

        while True:
            try:
                version = await self._begin()
                while True:
                    version = await self._watch(version)
            except (*API_ERRORS, ValueError) as error:
                backoff = min(self._first_backoff * 2 ** min(self._failures, MOST_DOUBLINGS), LAST_BACKOFF)
                self._failures += 1
                if not (isinstance(error, KubeError) and error.gone):
                    LOG.warning("watch of %s broke off, again in %.1f s: %s", self._resource.plural, backoff, error)
                self._broke_off(error)
                await asyncio.sleep(max(backoff, getattr(error, "retry_after", 0.0)))

    async def _watch(self, version: str) -> str:
        """Follows one watch request to its end; returns the last version seen."""
        began, told = asyncio.get_running_loop().time(), False
        async for event in self._kube.watch(self._resource, self._namespace, version, self._selectors):
            self._failures, told = 0, True
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
            self._reached(version)
        if not told and asyncio.get_running_loop().time() - began < SHORT_SECONDS:
            await asyncio.sleep(SHORT_SECONDS)  # ended at once, as behind a proxy or at a server that shuts down
        self._failures = 0
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
        """The list or watch broke off, and is about to begin again."""


class ListWatch(_Following):
    """Keeps a store like the API server's objects of one kind."""

    def __init__(
        self, kube: "Kube", resource: Resource, store: Store[Any], namespace: str | None = None, **selectors: str
    ) -> None:
        """`selectors`: labelSelector, fieldSelector."""
        super().__init__(kube, resource, namespace, selectors)
        self.synced = asyncio.Event()
        self._store = store

    def __str__(self) -> str:
        return f"watch {self._resource.plural}"

    async def list_once(self) -> str:
        """Lists into the store; returns the version to watch from. Raises API_ERRORS, and ValueError."""
        entries: list[Entry[Any]] = []
        version = ""
        pages = self._kube.pages(self._resource, self._store.entry, self._namespace, **self._selectors)
        async for page, listed_at in pages:
            entries += page
            version = listed_at
        self._store.replace_by(entries, version)
        self._failures = 0
        self.synced.set()
        return version

    async def _begin(self) -> str:
        return await self.list_once()

    def _take(self, kind: str, obj: Object) -> None:
        if kind == "DELETED":
            self._store.remove(obj)
        else:
            self._store.put(obj)


class Reflector(ListWatch):
    """A ListWatch with a store of its own, of whole objects."""

    def __init__(
        self,
        kube: "Kube",
        resource: Resource,
        changed: Callable[[], None],
        namespace: str | None = None,
        prune: Callable[[Object], Object | None] | None = None,
        **selectors: str,
    ) -> None:
        """`changed` is called in the event loop and must not block.

        `prune`: what to keep of an object, of a kind of which there may be many; None: nothing.
        """
        self._objects = Store[Object](prune or _whole, changed)
        super().__init__(kube, resource, self._objects, namespace, **selectors)

    @property
    def objects(self) -> dict[Key, Object]:
        return self._objects.objects

    def observe(self, obj: Object) -> None:
        """An answer of the API server, known before its event arrives."""
        self._objects.observe(obj)


def _whole(obj: Object) -> Object | None:
    return obj


class Follower(_Following):
    """Reports what is made or changed from its start on, and keeps nothing: for kinds of many objects, such as events.

    It resumes where it was after a lost connection, and after the API server refused for a while, as one does that
    restarts; what happened before an expired version is lost.
    """

    def __init__(
        self,
        kube: "Kube",
        resource: Resource,
        seen: Callable[[Object], None],
        namespace: str,
        *,
        first_backoff: float = FIRST_BACKOFF,
        **selectors: str,
    ) -> None:
        """`seen` is called in the event loop and must not block. `first_backoff`: seconds after a broken watch."""
        super().__init__(kube, resource, namespace, selectors, first_backoff)
        self._seen = seen
        self._last = ""

    async def _begin(self) -> str:
        if not self._last:
            # Of the whole namespace, and of one object: with a selector the server would search for one that fits.
            answer = await self._kube.list_all(self._resource, self._namespace, limit="1")
            self._last = str(answer["metadata"]["resourceVersion"])
            self._failures = 0
        return self._last

    def _take(self, kind: str, obj: Object) -> None:
        if kind != "DELETED":
            self._seen(obj)

    def _reached(self, version: str) -> None:
        self._last = version

    def _broke_off(self, error: Exception) -> None:
        if isinstance(error, KubeError) and (error.gone or self._failures >= MOST_REFUSALS):
            self._last = ""
