"""Who may stay connected when a server is full. Pure: connections are whatever the caller calls so.

The peer with the most connections gives way, so that nobody takes a server from the others, however many connections
it opens. Of that peer's, there are those without a request yet and the idle ones; of which it has more, the oldest
goes. So a new connection has time for its request even where all come from one address, as through a proxy. A
connection whose request is being worked on never goes: that is our turn, and soon over.
"""

import ipaddress
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True)
class _Held(Generic[C]):
    """One peer's connections, each kind in the order in which they came to it."""

    fresh: dict[C, None] = field(default_factory=dict)
    """Connections of which no request was answered yet."""
    idle: dict[C, None] = field(default_factory=dict)
    working: dict[C, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.idle) + len(self.working)

    @property
    def waiting(self) -> Iterator[C]:
        """The connections that may go, the first one first."""
        return iter(self.fresh if len(self.fresh) >= len(self.idle) else self.idle)


class Peers(Generic[C]):
    """The connections of a server, by their peers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._peers: dict[str, _Held[C]] = {}
        self._peer_of: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._peer_of)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._peer_of))

    def add(self, connection: C, peer: str) -> C | None:
        """The connection that has to go, which may be this very one; None: there is room. The caller removes it."""
        self._peer_of[connection] = peer
        self._peers.setdefault(peer, _Held()).fresh[connection] = None
        if len(self._peer_of) <= self._most:
            return None
        giving_way = max((held for held in self._peers.values() if held.fresh or held.idle), key=len)
        return next(giving_way.waiting)  # at least the new connection waits

    def work(self, connection: C) -> None:
        """The connection's request is complete: it is our turn."""
        if (held := self._taken_out(connection)) is not None:
            held.working[connection] = None

    def rest(self, connection: C) -> None:
        """The connection's request is answered: it is the peer's turn."""
        if (held := self._taken_out(connection)) is not None:
            held.idle[connection] = None

    def remove(self, connection: C) -> None:
        """A connection that is not known is none."""
        if (held := self._taken_out(connection)) is not None:
            peer = self._peer_of.pop(connection)
            if len(held) == 0:
                del self._peers[peer]

    def _taken_out(self, connection: C) -> _Held[C] | None:
        peer = self._peer_of.get(connection)
        if peer is None:
            return None
        held = self._peers[peer]
        for kind in (held.fresh, held.idle, held.working):
            kind.pop(connection, None)
        return held


def peer_name(host: str) -> str:
    """What counts as one peer: an IPv4 address, or the /64 of an IPv6 one, all of which one machine may have."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
