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
        minutes, before = cls(), 0.0
        for minute, taken in sorted(by_minute.items())[:-1]:
            minutes.load[minute] = (
                median(sample.clients for sample in taken),
                median(sample.shares for sample in taken),
            )
            for key, life, value in (
                *_of_processes(taken, cluster),
                *_of_node(taken, cluster),
                *_of_requests(taken, cluster, (taken[-1].at - before) / 60),
            ):
                minutes.series.setdefault(key, {}).setdefault(life, {})[minute] = round(value, 2)
            before = taken[-1].at
        return minutes


def _of_processes(taken: list[Sample], cluster: str) -> Iterator[tuple[Key, str, float]]:
    lives: dict[tuple[str, str], list[Process]] = defaultdict(list)
    for process in (process for sample in taken for process in sample.processes):
        lives[process.part, process.life].append(process)
    for (part, life), seen in lives.items():
        yield (part, "memory"), f"{cluster} {life}", median(process.rss for process in seen)
        yield (part, "file descriptors"), f"{cluster} {life}", median(process.descriptors for process in seen)
        yield (part, "threads"), f"{cluster} {life}", median(process.threads for process in seen)


def _of_node(taken: list[Sample], cluster: str) -> Iterator[tuple[Key, str, float]]:
    yield (NODE, "disk"), cluster, median(sample.kilobytes for sample in taken)
    yield (NODE, "files"), cluster, median(sample.files for sample in taken)
    yield (NODE, "GpuNode"), cluster, median(sample.gpu_node for sample in taken)


def _of_requests(taken: list[Sample], cluster: str, minutes: float) -> Iterator[tuple[Key, str, float]]:
    for part in WRITING:
        yield (part, "API writes"), cluster, sum(sample.writes.get(part, 0) for sample in taken) / minutes
        yield (part, "events"), cluster, sum(sample.events.get(part, 0) for sample in taken) / minutes
