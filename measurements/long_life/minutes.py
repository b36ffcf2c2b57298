"""Samples as series of minutes: what is stored, drawn and judged. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from measurements.long_life.samples import Process, Sample

UNITS = {
    "memory": "MiB",
    "file descriptors": "",
    "threads": "",
    "disk": "KiB",
    "files": "",
    "GpuNode": "bytes",
    "API writes": "per minute",
    "events": "per minute",
}
"""Units of what is measured."""
NODE = "node"
WRITING = ("operator", "webhook", "agent")

Key = tuple[str, str]
"""(part or NODE, one of UNITS)."""
Points = dict[int, float]
"""Values by minute since the stretch of the long life began."""


@dataclass
class Minutes:
    """`load`: (clients, shares) by minute. `series`: by life, that of a process or of a cluster."""

    load: dict[int, tuple[float, float]] = field(default_factory=dict)
    series: dict[Key, dict[str, Points]] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Iterable[Sample], cluster: str) -> "Minutes":
        """Medians of each minute, and requests by their rate. The last minute is left out: it is not whole.

        `cluster`: names it; what belongs to no process is the cluster's.
        """
        by_minute: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_minute[int(sample.at // 60)].append(sample)
        found, before = cls(), 0.0
        for minute, taken in sorted(by_minute.items())[:-1]:
            found.load[minute] = (median(it.clients for it in taken), median(it.shares for it in taken))
            for key, life, value in (
                *_of_processes(taken, cluster),
                *_of_node(taken, cluster),
                *_of_requests(taken, cluster, (taken[-1].at - before) / 60),
            ):
                found.series.setdefault(key, {}).setdefault(life, {})[minute] = round(value, 2)
            before = taken[-1].at
        return found


def _of_processes(taken: list[Sample], cluster: str) -> Iterator[tuple[Key, str, float]]:
    lives: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for it in (it for sample in taken for it in sample.processes):
        lives[it.part, it.life].append(it)
    for (part, life), seen in lives.items():
        yield (part, "memory"), f"{cluster} {life}", median(it.rss for it in seen)
        yield (part, "file descriptors"), f"{cluster} {life}", median(it.descriptors for it in seen)
        yield (part, "threads"), f"{cluster} {life}", median(it.threads for it in seen)


def _of_node(taken: list[Sample], cluster: str) -> Iterator[tuple[Key, str, float]]:
    yield (NODE, "disk"), cluster, median(it.kilobytes for it in taken)
    yield (NODE, "files"), cluster, median(it.files for it in taken)
    yield (NODE, "GpuNode"), cluster, median(it.gpu_node for it in taken)


def _of_requests(taken: list[Sample], cluster: str, minutes: float) -> Iterator[tuple[Key, str, float]]:
    for part in WRITING:
        yield (part, "API writes"), cluster, sum(it.writes.get(part, 0) for it in taken) / minutes
        yield (part, "events"), cluster, sum(it.events.get(part, 0) for it in taken) / minutes
