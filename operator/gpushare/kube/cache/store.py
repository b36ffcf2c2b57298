"""What is kept of the objects of one kind, as watches, lists and the answers to our own writes show them.

Guarantees: an object only ever gets newer, so what arrives late changes nothing; in particular, the answer to a write
that arrives after the object's deletion does not bring it back. `changed` is called when something that is kept
changed, and only then: what `keep` leaves out, such as the heartbeats of Nodes, does not count. What is kept of an
object stays the same value until it changes, so that others can tell by identity.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpushare.kube.resources import Object

Key = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""
Kept = TypeVar("Kept")


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def version_of(obj: Object) -> int:
    """Resource versions of one kind are comparable as integers (Kubernetes API concepts, since 1.35 by promise)."""
    return parsed_version(obj["metadata"].get("resourceVersion", ""))


def parsed_version(text: str) -> int:
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Entry(Generic[Kept]):
    """What is kept of one object of a list."""

    key: Key
    version: int
    kept: Kept


class Store(Generic[Kept]):
    def __init__(self, keep: Callable[[Object], Kept | None], changed: Callable[[], None]) -> None:
        """`keep`: what to keep of an object; None: nothing. `changed` must not block."""
        self.objects: dict[Key, Kept] = {}
        """What is kept of each object, by (namespace, name)."""
        self.changes = 0
        """How often what is kept changed. Who has read all of it reads it again only when this is another number."""
        self._versions: dict[Key, int] = {}
        self._last_removal = 0
        """The highest version of a removal or list: an answer no newer than it may be about an object that is gone."""
        self._keep = keep
        self._changed = changed

    def get(self, name: str, namespace: str = "") -> Kept | None:
        return self.objects.get((namespace, name))

    def versions(self) -> dict[Key, int]:
        """A copy: the newest version that was seen of each object, whether or not what is kept of it changed."""
        return dict(self._versions)

    def put(self, obj: Object) -> None:
        """An object as a watch shows it. One that the answer to a write has shown already is not looked at again."""
        key, version = key_of(obj), version_of(obj)
        known = self._versions.get(key, 0)
        if version < known or version == known != 0:
            return
        if self._set(key, version, self._keep(obj)):
            self._changed()

    def observe(self, obj: Object) -> None:
        """An object as the answer to a write shows it, before its event arrives."""
        key, version = key_of(obj), version_of(obj)
        known = self._versions.get(key)
        if version > (self._last_removal if known is None else known) and self._set(key, version, self._keep(obj)):
            self._changed()

    def remove(self, obj: Object) -> None:
        """The last state of an object that is gone; one that was made again by that name since stays."""
        key, version = key_of(obj), version_of(obj)
        self._last_removal = max(self._last_removal, version)
        if self._versions.get(key, version) <= version and self._set(key, version, None):
            self._changed()

    def entry(self, obj: Object) -> Entry[Kept] | None:
        """What is kept of an object, for `replace_by`: no object of a long list has to stay whole. None: nothing."""
        kept = self._keep(obj)
        return None if kept is None else Entry(key_of(obj), version_of(obj), kept)

    def replace(self, objects: Iterable[Object], version: str) -> None:
        """A complete list, taken at `version`: what it lacks is gone, unless it was seen later than that."""
        self.replace_by((entry for obj in objects if (entry := self.entry(obj)) is not None), version)

    def replace_by(self, entries: Iterable[Entry[Kept]], version: str) -> None:
        """The same as `replace`, of what `entry` made of each object."""
        listed, reached = {entry.key: entry for entry in entries}, parsed_version(version)
        self._last_removal = max(self._last_removal, reached)  # of what it lacks, each removal is older than the list
        for key in [key for key, seen in self._versions.items() if key not in listed and seen <= reached]:
            self._set(key, reached, None)
        for key, entry in listed.items():
            if entry.version >= self._versions.get(key, 0):
                self._set(key, entry.version, entry.kept)
        self._changed()

    def _set(self, key: Key, version: int, kept: Kept | None) -> bool:
        """Whether something changed."""
        before = self.objects.get(key)
        if kept is None:
            self._versions.pop(key, None)
            self.objects.pop(key, None)
        else:
            self._versions[key] = version
            if kept == before:
                return False  # the object that others have seen stays the same one
            self.objects[key] = kept
        self.changes += kept is not before
        return kept is not before
