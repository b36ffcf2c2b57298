"""The metrics of one process: a registry of its own, with figures of the process and its release."""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from gpushare.metrics.families import Family, Sample, SnapshotCollector

T = TypeVar("T")

BUILD_INFO = Family(
    "gpushare_build_info", "1, with the release and the part of gpushare that this is.", ("version", "part")
)


class Exported:
    """`registry`: for counters and histograms; `snapshot`: for values that are read at each scrape."""

    def __init__(self, part: str) -> None:
        # `_created` would be one more series for each counter and histogram, which nothing of ours reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._snapshots: list[SnapshotCollector[object]] = []
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.snapshot([BUILD_INFO], lambda: part, lambda name: [BUILD_INFO.of(1, version("gpushare"), name)])

    def snapshot(
        self, families: Sequence[Family], take: Callable[[], T | None], samples: Callable[[T], Iterable[Sample]]
    ) -> None:
        """Adds a SnapshotCollector with these arguments."""
        collector = SnapshotCollector(families, take, samples)
        self.registry.register(collector)
        self._snapshots.append(collector)  # type: ignore[arg-type]

    def refresh(self) -> None:
        """Takes every snapshot anew. Call it in the event loop, right before a scrape is rendered."""
        for collector in self._snapshots:
            collector.refresh()
