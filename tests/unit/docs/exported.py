"""Every metric of every part, as its registry has it."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics import MetricWrapperBase

from gpushare.agent.status import meters as agent
from gpushare.agent.status.metrics import WITHOUT_DRIVER
from gpushare.controller import metrics as operator
from gpushare.controller.metrics import FleetSnapshot
from gpushare.metrics.exported import Exported
from gpushare.metrics.families import SnapshotCollector
from gpushare.webhook import metrics as webhook


@dataclass(frozen=True)
class Exposed:
    """`name` as it stands in a scrape; a histogram's without `_bucket`, `_sum` and `_count`."""

    part: str
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query may use."""
        ends = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return tuple(self.name + end for end in ends)


def exposed() -> list[Exposed]:
    """Metrics in the order in which the parts register them; gpushare's own, without those of the process."""
    parts = {
        "agent": agent.export(lambda: WITHOUT_DRIVER)[0],
        "operator": operator.export(lambda: FleetSnapshot(False, {}))[0],
        "webhook": webhook.export(lambda: None)[0],
    }
    return [metric for part, exported in parts.items() for metric in _of(part, exported)]


def _of(part: str, exported: Exported) -> Iterator[Exposed]:
    for collector in exported.registry._collector_to_names:  # noqa: SLF001 - there is no public list
        if isinstance(collector, SnapshotCollector | MetricWrapperBase):
            for family in collector.describe():
                labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
                name = family.name + ("_total" if family.type == "counter" else "")
                yield Exposed(part, name, family.type, tuple(labels), family.documentation)
