"""The memory that requests' bodies take before they are answered. Pure: connections are whatever the caller calls so.

Small bodies are free: the number of connections bounds them. Large ones share what there is. When that is used up, the
peer whose bodies take most gives way with the largest that it has not sent completely.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

SMALL = 32 * 1024

C = TypeVar("C", bound=Hashable)


class Bodies(Generic[C]):
    """`most`: bytes that large bodies may take together; one alone may take as much."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._large: dict[C, tuple[str, int]] = {}
        """(peer, bytes)"""
        self._complete: set[C] = set()

    @property
    def bytes(self) -> int:
        """That large bodies take."""
        return sum(size for _, size in self._large.values())

    def grow(self, connection: C, peer: str, size: int) -> C | None:
        """`size`: bytes that have come so far. The connection that has to go, which may be this one; None: none has.

        The caller removes it.
        """
        if size <= SMALL:
            return None
        self._large[connection] = (peer, size)
        if self.bytes <= self._most:
            return None
        by_peer = Counter[str]()
        for peer, taken in self._large.values():
            by_peer[peer] += taken
        incomplete = [one for one in self._large if one not in self._complete]  # at least the one that grows
        return max(incomplete, key=lambda one: (by_peer[self._large[one][0]], self._large[one][1]))

    def complete(self, connection: C) -> None:
        """It is worked on now: it stays until it is answered."""
        self._complete.add(connection)

    def remove(self, connection: C) -> None:
        """It is answered, or its connection is gone."""
        self._large.pop(connection, None)
        self._complete.discard(connection)
