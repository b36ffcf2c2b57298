"""The memory that requests' bodies take before they are answered. Pure: connections are whatever the caller calls so.

Small bodies are free: the number of connections bounds them. Large ones share what there is. When that is used up, the
peer whose bodies take most gives way with the largest that it has not sent completely, until the rest fits.
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
        """The bytes that large bodies take together."""
        return sum(size for _, size in self._large.values())

    def grow(self, connection: C, peer: str, size: int) -> list[C]:
        """`size`: bytes that have come so far. The connections that have to go, of which this may be one.

        The caller removes them.
        """
        if size <= SMALL:
            return []
        self._large[connection] = (peer, size)
        if self.bytes <= self._most:
            return []
        by_peer = Counter[str]()
        for owner, taken in self._large.values():
            by_peer[owner] += taken
        gone: list[C] = []
        incomplete = {candidate: body for candidate, body in self._large.items() if candidate not in self._complete}
        while by_peer.total() > self._most:  # without the one that grows it was not more
            largest = max(
                incomplete, key=lambda candidate: (by_peer[incomplete[candidate][0]], incomplete[candidate][1])
            )
            if largest == connection:
                return [connection]  # nobody else has to go
            owner, taken = incomplete.pop(largest)
            by_peer[owner] -= taken
            gone.append(largest)
        return gone

    def complete(self, connection: C) -> None:
        """The connection's body is complete and worked on: it stays until it is answered."""
        self._complete.add(connection)

    def remove(self, connection: C) -> None:
        """The body is answered, or its connection is gone."""
        self._large.pop(connection, None)
        self._complete.discard(connection)
