"""List and watch one kind into a dict, for ever.

Guarantees: `objects` is complete once `synced` is set; every later change calls `changed`. A lost connection or an
expired version leads to a new list, with back-off; in between `objects` keeps what was known last.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from gpushare.kube.client import Kube, KubeError, Object, Resource

LOG = logging.getLogger(__name__)
FIRST_BACKOFF = 0.5
LAST_BACKOFF = 15.0

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class Reflector:
    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        changed: Callable[[], None],
        namespace: str | None = None,
        **selectors: str,
    ) -> None:
        """`selectors`: labelSelector, fieldSelector. `changed` is called in the event loop and must not block."""
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self._kube = kube
        self._resource = resource
        self._changed = changed
        self._namespace = namespace
        self._selectors = selectors

    async def run(self) -> None:
        """Runs until cancelled."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                version = await self._list()
                backoff = FIRST_BACKOFF
                while True:
                    version = await self._watch(version)
            except (KubeError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if not (isinstance(error, KubeError) and error.gone):
                    LOG.warning("watch of %s broke off, again in %.1f s: %s", self._resource.plural, backoff, error)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)

    async def _list(self) -> str:
        answer = await self._kube.list_all(self._resource, self._namespace, **self._selectors)
        self.objects = {key_of(item): item for item in answer.get("items") or []}
        self.synced.set()
        self._changed()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Follows one watch request to its end; returns the last version seen."""
        async for event in self._kube.watch(self._resource, self._namespace, version, self._selectors):
            obj = event["object"]
            version = obj["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            if event["type"] == "DELETED":
                with suppress(KeyError):
                    del self.objects[key_of(obj)]
            else:
                self.objects[key_of(obj)] = obj
            self._changed()
        return version
