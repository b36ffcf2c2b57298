"""Objects of many namespaces in a bounded room: where it is full, the namespace that has most gives way."""

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping

from gpushare.kube.resources import Object

Key = tuple[str, str]
"""(namespace, name)"""


class FairStore:
    """Not safe to use from several threads."""

    def __init__(self, most_bytes: int, *, oldest_go: bool = False) -> None:
        """`most_bytes`: of all objects as JSON. `oldest_go`: what gives way is what was put first, else last."""
        self._most, self._oldest_go = most_bytes, oldest_go
        self._kept: dict[str, OrderedDict[Key, tuple[int, Object]]] = {}
        self._bytes: Counter[str] = Counter()
        self._total = 0
        self._left_out: set[Key] = set()

    def put(self, key: Key, obj: Object) -> None:
        self.remove(key)
        size = len(json.dumps(obj))
        self._kept.setdefault(key[0], OrderedDict())[key] = size, obj
        self._count(key[0], size)
        while self._total > self._most:
            largest = max(self._bytes, key=lambda namespace: self._bytes[namespace])
            gone, (freed, _) = self._kept[largest].popitem(last=not self._oldest_go)
            if not self._oldest_go:  # what is old is not missed
                self._left_out.add(gone)
            self._count(largest, -freed)

    def remove(self, key: Key) -> None:
        self._left_out.discard(key)
        objects = self._kept.get(key[0])
        if objects is not None and key in objects:
            size, _ = objects.pop(key)
            self._count(key[0], -size)

    def __iter__(self) -> Iterator[Object]:
        for objects in self._kept.values():
            for _, obj in objects.values():
                yield obj

    def by_namespace(self) -> Mapping[str, list[Object]]:
        return {namespace: [obj for _, obj in objects.values()] for namespace, objects in self._kept.items()}

    @property
    def left_out(self) -> str:
        """How many there are no more room for, of which namespace most; empty: none."""
        if not self._left_out:
            return ""
        namespace, _ = Counter(namespace for namespace, _ in self._left_out).most_common(1)[0]
        count = len(self._left_out)
        return f"{count} are left out, most of them of namespace {namespace}, which has too many or too large ones"

    def _count(self, namespace: str, size: int) -> None:
        self._total += size
        self._bytes[namespace] += size
        if not self._kept.get(namespace):
            self._kept.pop(namespace, None)
            del self._bytes[namespace]
