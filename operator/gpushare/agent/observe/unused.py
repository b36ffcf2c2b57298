"""Which containers hold a part of a GPU and have no client on it, and since when. Pure.

A program that loads its data first, or waits between two batches, is without a client for minutes. So only what lasts
is published, once: an idle node writes nothing.

Guarantees: a container is called unused by readings of its GPU alone; while there is none, what was known stays. A
restarted agent goes on with the times that its predecessor published, and dates none earlier than it can know.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpushare.agent.observe.usage import Reading
from gpushare.agent.podresources.holdings import ContainerName, ShareGpu
from gpushare.api.gpunode import MAX_UNUSED, ShareName, UnusedPart, Uuid
from gpushare.api.timestamps import format_timestamp, parse_timestamp
from gpushare.kube.client import Object
from gpushare.kube.pods import container_statuses, is_running

PUBLISHED_AFTER = timedelta(minutes=2)
"""A container without a client for so long is listed in the API."""


@dataclass(frozen=True, slots=True)
class RunningPart:
    """A running container that holds a part of a GPU. `started`: when it did; None: its status does not say."""

    share: ShareName
    uuid: Uuid
    pod_uid: str
    container: ContainerName
    started: datetime | None


@dataclass(frozen=True, slots=True)
class Unused:
    """A part without a client. `since`: when its last client was seen, or its container started."""

    part: RunningPart
    since: datetime


def running_parts(
    pods: Iterable[Object], places: Mapping[ContainerName, Collection[ShareGpu]]
) -> Iterator[RunningPart]:
    """`places`: where the containers' slots and claims are, or which whole GPUs they have."""
    for pod in pods:
        metadata = pod["metadata"]
        for status in container_statuses(pod):
            container = (metadata["namespace"], metadata["name"], status["name"])
            if container in places and is_running(status):
                text = (status["state"]["running"] or {}).get("startedAt")
                started = parse_timestamp(text) if text else None
                for share_gpu in places[container]:
                    yield RunningPart(*share_gpu, metadata["uid"], container, started)


class UnusedParts:
    """Follows the readings. `now` is always the wall clock, in UTC."""

    def __init__(self, before: Sequence[UnusedPart], now: datetime) -> None:
        """`before`: what the API holds, of an earlier agent. `now`: when this one begins."""
        self.longest_first: tuple[Unused, ...] = ()
        """The parts without a client, the longest first."""
        self._before = {(item.uuid, item.share, item.namespace, item.pod, item.container): item for item in before}
        self._began = now
        self._since: dict[RunningPart, datetime] = {}
        """When each had a client last, as far as is known."""

    def update(self, readings: Mapping[Uuid, Reading], parts: Iterable[RunningPart], now: datetime) -> None:
        """`readings`: the latest of each GPU. `parts`: those of all containers that run now."""
        before = {item.part for item in self.longest_first}
        since: dict[RunningPart, datetime] = {}
        unused = []
        for part in parts:
            used = _is_used(part, readings.get(part.uuid))
            since[part] = now if used else self._since.get(part) or self._first(part)
            if used is False or (used is None and part in before):
                unused.append(Unused(part, since[part]))
        self._since = since
        self.longest_first = tuple(sorted(unused, key=lambda item: (item.since, item.part.container, item.part.uuid)))

    def published(self, now: datetime) -> list[UnusedPart]:
        """The parts that have lasted without a client, for the node's status."""
        lasting = [item for item in self.longest_first if now - item.since >= PUBLISHED_AFTER]
        return [_published(item) for item in lasting[:MAX_UNUSED]]

    def _first(self, part: RunningPart) -> datetime:
        """The time from which a part counts that is seen for the first time."""
        item = self._before.get((part.uuid, part.share, *part.container))
        begun = self._began if item is None else parse_timestamp(item.unused_since)
        return begun if part.started is None else max(begun, part.started)


def _is_used(part: RunningPart, reading: Reading | None) -> bool | None:
    """Whether a process of the container is on the GPU, one of an unknown container of its pod included.

    None: there is no reading of the GPU, or it is another share's.
    """
    if reading is None or reading.share != part.share:
        return None
    return any(item.pod_uid == part.pod_uid and item.container in ("", part.container[2]) for item in reading.usages)


def _published(item: Unused) -> UnusedPart:
    part = item.part
    namespace, pod, container = part.container
    return UnusedPart(
        uuid=part.uuid,
        share=part.share,
        namespace=namespace,
        pod=pod,
        container=container,
        held_since=format_timestamp(part.started) if part.started is not None else None,
        unused_since=format_timestamp(item.since),
    )
