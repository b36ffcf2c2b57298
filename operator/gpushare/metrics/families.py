"""Metrics as values: what there is to tell (families) apart from what it is at a moment (samples).

A series is there for as long as the snapshot has its object, so nothing has to be taken back when a pod, a share or a
GPU goes, and nothing of the past can pile up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """`name` without the `_total` that a counter's series have. `help` says what the figure means, in its unit."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    def of(self, value: float, *labels: str) -> "Sample":
        """`labels`: values, in the order of the family's."""
        return Sample(self, value, labels)

    def empty(self) -> GaugeMetricFamily | CounterMetricFamily:
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return kind(self.name, self.help, labels=self.labels)


@dataclass(frozen=True, slots=True)
class Sample:
    family: Family
    value: float
    labels: tuple[str, ...]


class SnapshotCollector(Collector, Generic[T]):
    """`take` runs in the event loop, quickly, and copies references; `tell` is pure and runs in the scrape's thread."""

    def __init__(
        self, families: Sequence[Family], take: Callable[[], T | None], tell: Callable[[T], Iterable[Sample]]
    ) -> None:
        self._families = families
        self._take = take
        self._tell = tell
        self._taken: T | None = None

    def refresh(self) -> None:
        self._taken = self._take()

    def describe(self) -> Iterable[Metric]:
        return [family.empty() for family in self._families]

    def collect(self) -> Iterable[Metric]:
        taken = self._taken
        told = {family.name: family.empty() for family in self._families}
        for sample in self._tell(taken) if taken is not None else ():
            told[sample.family.name].add_metric(sample.labels, sample.value)
        return told.values()
