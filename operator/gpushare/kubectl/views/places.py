"""Places on GPUs whose share has a queue: how many are used, and who waits. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpushare.api.gpunode import GpuNode, GpuPlaces
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.output.report import Column, Row, Short
from gpushare.messages.wording import count_of, first_names, named

PLACES = (
    Column("NODE", dropped=1),
    Column("GPU"),
    Column("SHARE", dropped=2),
    Column("PLACES"),
    Column("WAIT", figures=True),
    Column("NEXT", text=True),
)
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Wait:
    """A container of a pod that waits. `position`: 1 is next."""

    container: str
    position: int
    places: GpuPlaces

    @property
    def sentence(self) -> str:
        return (
            f"container {self.container} waits for a place on GPU {self.places.uuid}, at position {self.position} of "
            f"{max(self.places.waiting, self.position)}: {self.places.used} of "
            f"{count_of(self.places.limit, 'place')} {'is' if self.places.used == 1 else 'are'} taken"
        )


def waits_of(pod: str, nodes: Iterable[GpuNode]) -> Iterator[Wait]:
    """`pod`: namespace/name."""
    for places in (places for node in nodes for places in node.status.places):
        for position, client in enumerate(places.queue, 1):
            if client.rpartition("/")[0] == pod:
                yield Wait(client.rpartition("/")[2], position, places)


def holders_in(places: GpuPlaces, namespace: str) -> str:
    """A clause on who has the places: pods of the namespace by name, and of others how many."""
    own = sorted({client.rpartition("/")[0] for client in places.held if client.startswith(f"{namespace}/")})
    others = places.used - sum(client.startswith(f"{namespace}/") for client in places.held)
    who = [named("pod", own, MOST_NAMED)] if own else []
    who += [f"{count_of(others, 'container')} of other namespaces"] if others > 0 else []
    return f", by {' and '.join(who)}" if who else ""


def places_rows(nodes: Iterable[GpuNode], short: Mapping[str, Short], share: str | None = None) -> Iterator[Row]:
    """Rows of PLACES. `share`: of that one only."""
    for node in nodes:
        for item in node.status.places:
            if share is None or item.share == share:
                used, waiting = f"{item.used}/{item.limit}", str(item.waiting)
                following = first_names(item.queue, MOST_NAMED)
                yield node.name, short.get(item.uuid, item.uuid), item.share, used, waiting, following


def queue_of(share: GpuShare) -> str:
    """What its queue is, and how full; empty: it has none."""
    queue, places = share.queue, share.status.places
    if queue is None:
        return ""
    now = f"{places.used} used of {places.total}, {places.waiting} wait; " if places is not None else ""
    idle = f", a client idle for {queue.idle_after} may lose its own" if queue.idle_after is not None else ""
    return f"{now}{share.clients.per_gpu} on each GPU; waits of {queue.max_wait} at most{idle}"
