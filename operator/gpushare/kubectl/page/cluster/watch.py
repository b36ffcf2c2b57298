"""Follows the objects of one kind in a thread: lists them in pages, watches, and begins again when that breaks off.

Of an object only what `put` keeps stays in memory; one that is too large to be read is left out, and told.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from gpushare.kube.resources import KubeError, Object, Resource
from gpushare.kubectl.api import TOO_LARGE, ApiReader
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.page.cluster.fair_store import Key

WATCH_SECONDS = 300
FIRST_BACKOFF, LAST_BACKOFF = 1.0, 30.0
FORBIDDEN_BACKOFF = 60.0
"""Rights change seldom."""


@dataclass(frozen=True, slots=True)
class Followed:
    """One kind. `put` and `remove` are called from the thread for each object, and must not raise."""

    resource: Resource
    put: Callable[[Object], None]
    remove: Callable[[Key], None]
    namespace: str | None = None
    selectors: dict[str, str] = field(default_factory=dict)
    optional: bool = False
    """Tells whether an API server may do without this kind: no trouble then."""


class KindWatch:
    """`run` is the thread's part; `trouble` is told why nothing can be read, and "" once it can."""

    def __init__(self, api: ApiReader, followed: Followed, trouble: Callable[[str], None]) -> None:
        self._api = api
        self._followed = followed
        self._trouble = trouble
        self._known: set[Key] = set()
        self._skipped = 0
        """Objects of the last list, and of watches since, that are too large."""

    def run(self, stop: threading.Event) -> None:
        backoff = FIRST_BACKOFF
        while not stop.is_set():
            try:
                version = self._list()
                self._tell_skipped()
                backoff = FIRST_BACKOFF
                while not stop.is_set():
                    version = self._watch(version)
                    stop.wait(FIRST_BACKOFF)  # whoever ends each watch at once is not asked without a pause
            except KubeError as error:
                if error.gone:
                    stop.wait(FIRST_BACKOFF)
                    continue
                refused = error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
                self._trouble("" if error.not_found and self._followed.optional else str(error))
                stop.wait(FORBIDDEN_BACKOFF if refused else backoff)
            except UnreachableError as error:
                self._trouble(str(error))
                stop.wait(backoff)
            except (LookupError, TypeError, ValueError, AttributeError) as error:  # something else answers
                self._trouble(f"an answer cannot be read: {error!r}")
                stop.wait(LAST_BACKOFF)
            backoff = min(2 * backoff, LAST_BACKOFF)

    def _list(self) -> str:
        """The version to watch from."""
        keys: set[Key] = set()
        version, skipped = "", 0
        followed = self._followed
        for page in self._api.pages(followed.resource, followed.namespace, **followed.selectors):
            version, skipped = page.version, skipped + page.skipped
            for item in page.items:
                keys.add(_key(item))
                followed.put(item)
        if not version:
            raise ValueError("the list has no resourceVersion")
        for key in self._known - keys:
            followed.remove(key)
        self._known, self._skipped = keys, skipped
        return version

    def _tell_skipped(self) -> None:
        self._trouble(f"{self._skipped} are left out, {TOO_LARGE}" if self._skipped else "")

    def _watch(self, version: str) -> str:
        """Watches until the API server ends the request. Returns the last version seen."""
        followed = self._followed
        query = {**followed.selectors, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true",
                 "timeoutSeconds": str(WATCH_SECONDS)}  # fmt: skip
        for line in self._api.lines(followed.resource.path(followed.namespace), query, WATCH_SECONDS + 15):
            if line is None:
                self._skipped += 1
                self._tell_skipped()
                continue
            try:
                event = self._api.parsed(line)
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    raise KubeError(int(item.get("code", 500)), str(item.get("reason", "")), str(item.get("message")))
                version = str(item["metadata"]["resourceVersion"])
            except (ValueError, LookupError, TypeError) as error:
                raise UnreachableError(f"a watch event cannot be read: {error}") from None
            if kind == "DELETED":
                self._known.discard(_key(item))
                followed.remove(_key(item))
            elif kind != "BOOKMARK":
                self._known.add(_key(item))
                followed.put(item)
        return version


def _key(item: Object) -> Key:
    return str(item["metadata"].get("namespace") or ""), str(item["metadata"]["name"])
