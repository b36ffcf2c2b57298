"""The containers that wait for a place on one GPU, and the connections by which their processes do.

Guarantees: whoever waits costs a descriptor, and no question of its own (`hang_ups`); places are handed over as `order`
has it, and nobody loses its turn by the end of a broker. A container that waited for as long as its share lets it is
refused, and told.
Nobody gets a place before it is known who has one, while the GPU takes no client, or, after a broker's end, before
those who had waited for longer have had the time to come back.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gpushare.messages.wording import count_of
from gpushare.mps.attach_protocol import PlaceAnswer, PlaceState
from gpushare.mps.identity import Container, Identity
from gpushare.mps.packets import send_now
from gpushare.mps.queue.hang_ups import HangUps
from gpushare.mps.queue.holders import PlaceHolders
from gpushare.mps.queue.order import Waiter, order, rank
from gpushare.mps.queue.waits import Waits
from gpushare.mps.wire import (
    MAX_PLACES,
    MAX_QUEUED,
    BrokerState,
    GpuGrants,
    PlaceHolder,
    PlacesInUse,
    QueuedContainer,
    WaitTimes,
)

TELL_SECONDS = 0.2
"""Positions are told so long after they have changed: of a crowd that comes at once, once."""
STILL_SECONDS = 60.0
"""So often a process hears that it waits, though nothing has changed."""
MAX_WAIT_SECONDS = 3600.0
"""Where the agent does not say."""
RETURN_SECONDS = 3.0
"""After a broker's end those who waited connect again; so long no place is given to others before them."""
REMEMBERED_SECONDS = 60.0
"""So long they keep their turn."""
RESTORED_SECONDS = 5.0
"""A place that was held at an earlier broker waits so long for the server's list to show its container; under protocol
v3 that list is read every 2 s."""


class Waited(Enum):
    """How a wait ended. NO_QUEUE: the GPU has none. CHANGED: the container's part of the GPU, or the queue."""

    PLACE = auto()
    NO_QUEUE = auto()
    CHANGED = auto()
    HUNG_UP = auto()


class NoPlaceError(Exception):
    """The container waited too long. The text says how long, and for whom."""


@dataclass(frozen=True, slots=True)
class _Member:
    namespace: str
    rank: int


@dataclass(slots=True, eq=False)
class _WaitingProcess:
    """`tells`: its process is told its position. `told_at`: CLOCK_BOOTTIME seconds."""

    sock: socket.socket
    process: Identity
    tells: bool
    ended: "asyncio.Future[Waited]"
    told: PlaceAnswer | None = None
    told_at: float = 0.0

    def end(self, outcome: Waited | Exception) -> None:
        if self.ended.done():
            return
        if isinstance(outcome, Exception):
            self.ended.set_exception(outcome)
        else:
            self.ended.set_result(outcome)

    def hung_up(self) -> None:
        self.end(Waited.HUNG_UP)

    def tell(self, answer: PlaceAnswer, now: float) -> None:
        before, again = self.told, now - self.told_at >= STILL_SECONDS
        changed = before is None or (before.position, before.places) != (answer.position, answer.places)
        if not self.tells or not (changed or again):
            return
        self.told, self.told_at = answer, now
        try:
            send_now(self.sock, answer.encode())
        except BlockingIOError:  # it does not read: it hears the next one
            return
        except OSError:
            self.end(Waited.HUNG_UP)


@dataclass(slots=True, eq=False)
class _WaitingContainer:
    since: float
    connections: list[_WaitingProcess] = field(default_factory=list)


class PlaceQueue:
    """The queue of one GPU. `clock`: CLOCK_BOOTTIME seconds. `handed_over`: called before who got a place goes on."""

    def __init__(
        self, clock: Callable[[], float], lives: Callable[[Identity], bool], handed_over: Callable[[], None]
    ) -> None:
        self.holders = PlaceHolders(clock, lives)
        self._clock = clock
        self._tell_handed_over = handed_over
        self._followed: GpuGrants | None = None
        self._closed = False
        self._max_wait = MAX_WAIT_SECONDS
        self._members: dict[Container, _Member] = {}
        self._waiting: dict[Container, _WaitingContainer] = {}
        self._known = False
        """Whether it is known who has a place."""
        self._former: dict[Container, float] = {}
        """Since when those wait that waited at an earlier broker, and have not come back yet."""
        self._hold_until = self._former_until = 0.0
        self._handed_over = 0
        self._waits = Waits()
        self._in_order: list[Waiter] | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._hang_ups = HangUps()

    @property
    def is_on(self) -> bool:
        return self.holders.limit > 0

    def close(self) -> None:
        """Once nobody waits here any more."""
        self._hang_ups.close()

    # What is known

    def restore(self, before: BrokerState) -> None:
        """What an earlier broker wrote."""
        now = self._clock()
        self._former = {(item.pod_uid, item.container): min(item.since, now) for item in before.queue}
        for container in self._former.keys() & self._waiting.keys():  # it has come back already
            entry = self._waiting[container]
            entry.since = min(entry.since, self._former.pop(container))
        self._change()
        self._hold_until, self._former_until = now + RETURN_SECONDS, now + REMEMBERED_SECONDS
        self._waits.restore(before.waits)
        for held in before.places.held if before.places is not None else ():
            container = held.pod_uid, held.container
            self.holders.restore(container, self._namespace(container), min(held.since, now), RESTORED_SECONDS)

    def follow(self, grants: GpuGrants | None) -> None:
        """The agent's word for who may have a place, and how many there are; None: it is not known now."""
        if grants is None or grants is self._followed:
            return
        self._followed, self._closed = grants, bool(grants.closed)
        self._known = self._known and self.is_on
        self.holders.limit, self._max_wait = grants.places, grants.max_wait or MAX_WAIT_SECONDS
        self._members = {
            (pod.uid, container.name): _Member(pod.namespace, rank(container.grant.client_class))
            for pod in grants.pods
            for container in pod.containers
            if container.grant is not None
        }
        for container in list(self._waiting):
            if not self.is_on or container not in self._members:
                self._end(container, Waited.CHANGED)
        self._change()
        self._hand_over()

    def look(self, listed: Mapping[Identity, Container], *, adopt: bool) -> frozenset[Container]:
        """Takes note of whose processes the server lists. `adopt`: as `PlaceHolders.listed`. Returns who has no place
        by this look and the one before; without a queue nobody needs a place.
        """
        if not self.is_on:
            return frozenset()
        before = self.holders.namespaces()
        without = self.holders.listed(
            listed, self._namespace, adopt=adopt or not self._known, take_free=not self._waiting
        )
        self._known = True
        for container in [container for container in self._waiting if self.holders.has(container)]:
            self._end(container, Waited.PLACE)
        if self.holders.namespaces() != before:
            self._change()
        self._hand_over()
        return without

    def _namespace(self, container: Container) -> str:
        member = self._members.get(container)
        return "" if member is None else member.namespace

    # Who waits

    async def wait(
        self, sock: socket.socket, process: Identity, container: Container, *, tells: bool, since: float = 0.0
    ) -> Waited:
        """Returns once the container has a place, at once where it has one. `since`: it has waited since then, in
        CLOCK_BOOTTIME seconds, if that is known. NoPlaceError.
        """
        if not self.is_on:
            return Waited.NO_QUEUE
        if container not in self._members:
            return Waited.CHANGED
        if self._known and self.holders.has(container):
            self.holders.give(container, self._namespace(container), [process])
            return Waited.PLACE
        connection = _WaitingProcess(sock, process, tells, asyncio.get_running_loop().create_future())
        with self._hang_ups.watched(sock, connection.hung_up):
            entry = self._join(container, connection, since)
            try:
                self._hand_over()
                return await connection.ended
            finally:
                self._leave(container, entry, connection)

    def _join(self, container: Container, connection: _WaitingProcess, since: float) -> _WaitingContainer:
        now = self._clock()
        since = min(since or now, self._former.pop(container, now))
        entry = self._waiting.setdefault(container, _WaitingContainer(since))
        entry.since = min(entry.since, since)
        entry.connections.append(connection)
        self._change()
        return entry

    def _leave(self, container: Container, entry: _WaitingContainer, connection: _WaitingProcess) -> None:
        entry.connections.remove(connection)
        if not entry.connections and self._waiting.get(container) is entry:
            del self._waiting[container]
            self._change()

    def _end(self, container: Container, outcome: Waited | Exception) -> None:
        """The container waits no more, by any of its connections."""
        for connection in self._waiting.pop(container).connections:
            connection.end(outcome)
        self._change()

    # Hand-overs

    def step(self) -> None:
        """To be called twice a second or so: for what nothing but time brings about."""
        now = self._clock()
        if now >= self._former_until:
            self._former = {}
        for container in [item for item, entry in self._waiting.items() if now - entry.since >= self._max_wait]:
            self._refuse(container)
        self._hand_over()
        self._tell(now)

    def _hand_over(self) -> None:
        now = self._clock()
        if not self._waiting or not self.holders.free or not self._gives(now):
            return
        for waiter in self._order()[: self.holders.free]:
            entry = self._waiting[waiter.container]
            processes = [connection.process for connection in entry.connections]
            self.holders.give(waiter.container, waiter.namespace, processes)
            self._handed_over += 1
            self._waits.add(now - entry.since)
            self._end(waiter.container, Waited.PLACE)
        self._tell_handed_over()

    def _gives(self, now: float) -> bool:
        return self._known and not self._closed and not (self._former and now < self._hold_until)

    def _refuse(self, container: Container) -> None:
        numbers, minutes = self._positions(), round(self._max_wait / 60)
        text = (
            f"it waited for a place on the GPU for {count_of(minutes, 'minute')}, as long as its share lets it "
            f"(clients.queue.maxWait): it was number {numbers.get(container, 0)} of {len(self._waiting)} that wait, "
            f"and the GPU has {count_of(self.holders.limit, 'place')}"
        )
        self._end(container, NoPlaceError(text))

    # Positions

    def _change(self) -> None:
        """Somebody came or went, or is of another class: positions are others, and told in a moment."""
        self._in_order = None
        if self._waiting and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell_now)

    def _tell_now(self) -> None:
        self._telling = None
        self._tell(self._clock())

    def _tell(self, now: float) -> None:
        waiting, places = len(self._waiting), self.holders.limit
        for number, waiter in enumerate(self._order(), 1):
            answer = PlaceAnswer(PlaceState.WAITING, number, waiting, places)
            for connection in list(self._waiting[waiter.container].connections):
                connection.tell(answer, now)

    def _order(self) -> list[Waiter]:
        if self._in_order is None:
            waiters = [
                Waiter(container, member.namespace, member.rank, entry.since)
                for container, entry in self._waiting.items()
                if (member := self._members.get(container)) is not None
            ]
            self._in_order = order(waiters, self.holders.namespaces(), self._handed_over)
        return self._in_order

    def _positions(self) -> Mapping[Container, int]:
        return {waiter.container: number for number, waiter in enumerate(self._order(), 1)}

    # What is told of it

    def answer(self, state: PlaceState) -> PlaceAnswer:
        """To a process that waits no more."""
        return PlaceAnswer(state, waiting=len(self._waiting), places=self.holders.limit)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def places(self) -> PlacesInUse | None:
        """None: there is no queue."""
        if not self.is_on:
            return None
        oldest = sorted(self.holders.since().items(), key=lambda item: (item[1], item[0]))[:MAX_PLACES]
        held = [PlaceHolder(pod_uid=uid, container=name, since=since) for (uid, name), since in oldest]
        return PlacesInUse(limit=self.holders.limit, held=held)

    def queued(self) -> list[QueuedContainer]:
        """In order; those who may come back, after an earlier broker's end, last."""
        now = [(waiter.container, waiter.since) for waiter in self._order()]
        later = sorted(self._former.items(), key=lambda item: (item[1], item[0]))
        return [
            QueuedContainer(pod_uid=uid, container=name, since=since, position=number)
            for number, ((uid, name), since) in enumerate([*now, *later][:MAX_QUEUED], 1)
        ]

    def wait_times(self) -> WaitTimes:
        return self._waits.times
