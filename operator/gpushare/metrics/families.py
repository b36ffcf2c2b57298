"""Metrics as values: families, which never change, and samples, which are made from a snapshot at each scrape.

Guarantees: a series exists exactly as long as the snapshot has its object. When a pod, a share or a GPU is gone, no
series has to be removed, and none can accumulate.
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
    """`take` runs in the event loop and only copies references; `samples` is pure and runs in the scrape's thread."""

    def __init__(
        self, families: Sequence[Family], take: Callable[[], T | None], samples: Callable[[T], Iterable[Sample]]
    ) -> None:
        self._families = families
        self._take = take
        self._samples = samples
        self._taken: T | None = None

    def refresh(self) -> None:
        self._taken = self._take()

    def describe(self) -> Iterable[Metric]:
        return [family.empty() for family in self._families]

    def collect(self) -> Iterable[Metric]:
        taken = self._taken
        metrics = {family.name: family.empty() for family in self._families}
        for sample in self._samples(taken) if taken is not None else ():
            metrics[sample.family.name].add_metric(sample.labels, sample.value)
        return metrics.values()
