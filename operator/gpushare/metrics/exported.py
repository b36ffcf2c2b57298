"""One process' metrics: a registry of its own, with the process' own figures and which gpushare it is."""

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
    """`registry`: for the part's counters and histograms; `snapshot`: for what is as it is when a scrape comes."""

    def __init__(self, part: str) -> None:
        # They are a third series for each counter and histogram, which nothing of ours asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._snapshots: list[SnapshotCollector[object]] = []
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.snapshot([BUILD_INFO], lambda: part, lambda told: [BUILD_INFO.of(1, version("gpushare"), told)])

    def snapshot(
        self, families: Sequence[Family], take: Callable[[], T | None], tell: Callable[[T], Iterable[Sample]]
    ) -> None:
        """As SnapshotCollector."""
        collector = SnapshotCollector(families, take, tell)
        self.registry.register(collector)
        self._snapshots.append(collector)  # type: ignore[arg-type]

    def refresh(self) -> None:
        """Takes every snapshot anew; in the event loop, right before a scrape is answered."""
        for collector in self._snapshots:
            collector.refresh()
