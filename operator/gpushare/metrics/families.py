"""Metrics as values: families, which never change, and samples, which are made from a snapshot at each scrape.

Guarantees: a series exists exactly as long as the snapshot has its object. When a pod, a share or a GPU is gone, no
series has to be removed, and none can accumulate.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """`name` without the `_total` that a counter's series have. `help` says what the figure means, in its unit."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"

    def of(self, value: float, *labels: str) -> "Sample":
        """`labels`: values, in the order of the family's."""
        return Sample(self, value, labels)

    def distribution(self, buckets: Iterable[tuple[float, int]], count: int, total: float, *labels: str) -> "Sample":
        """Of a histogram. `buckets`: (upper bound, how many are not above it), by their bounds. `total`: of all."""
        return Sample(self, total, labels, (*((f"{bound:g}", number) for bound, number in buckets), ("+Inf", count)))

    def empty(self) -> GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily:
        return _KINDS[self.kind](self.name, self.help, labels=self.labels)


_KINDS: dict[str, type[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """`value`: of a histogram, the sum; `buckets`: its counts, each with that of all buckets below."""

    family: Family
    value: float
    labels: tuple[str, ...]
    buckets: tuple[tuple[str, int], ...] = ()


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
            metric = metrics[sample.family.name]
            if isinstance(metric, HistogramMetricFamily):
                metric.add_metric(sample.labels, sample.buckets, sample.value)
            else:
                metric.add_metric(sample.labels, sample.value)
        return metrics.values()
