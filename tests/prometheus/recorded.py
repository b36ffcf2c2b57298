"""A week of gpushare's metrics, as a Prometheus would have recorded it, in OpenMetrics for promtool."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SCRAPE_SECONDS = 60
MIB = 1024 * 1024

Figure = Callable[[float], float | None]
"""A function from the time, as a part of the week from 0 to 1, to the value then; None: there is no series then."""


@dataclass(frozen=True)
class Recorded:
    """One series of gpushare's own labels."""

    metric: str
    labels: dict[str, str]
    figure: Figure


def always(value: float) -> Figure:
    return lambda _: value


def during(begin: float, end: float, value: float) -> Figure:
    return lambda at: value if begin <= at < end else None


def of_container(share: str, uuid: str, pod: str, used_mib: Figure, granted_mib: int, threads: int) -> list[Recorded]:
    """All series that an agent serves of a container with one process, while `used_mib` has a value."""
    where = {"namespace": "ml", "pod": pod, "container": "app", "share": share, "uuid": uuid}

    def there(value: float) -> Figure:
        return lambda at: None if used_mib(at) is None else value

    def used(at: float) -> float | None:
        mib = used_mib(at)
        return None if mib is None else mib * MIB

    return [
        Recorded("gpushare_container_memory_used_bytes", where, used),
        Recorded("gpushare_container_memory_granted_bytes", where, there(granted_mib * MIB)),
        Recorded("gpushare_container_threads_granted_ratio", where, there(threads / 100)),
        Recorded("gpushare_container_processes", where, there(1)),
    ]


def openmetrics(series: Iterable[Recorded], begin: float, end: float) -> Iterator[str]:
    """Lines. The agent is restarted in the middle, so `instance` and the agent's own pod change there."""
    by_metric: dict[str, list[Recorded]] = {}
    for item in series:
        by_metric.setdefault(item.metric, []).append(item)
    for metric, of_metric in by_metric.items():
        yield f"# TYPE {metric.removesuffix('_total')} {'counter' if metric.endswith('_total') else 'gauge'}"
        for item in of_metric:
            for restart in (0, 1):
                yield from _lines(item, begin, end, restart)
    yield "# EOF"


def _lines(item: Recorded, begin: float, end: float, restart: int) -> Iterator[str]:
    labels = {"pod": f"gpushare-agent-{restart}", **item.labels, "instance": f"10.0.0.{restart}:9408", "node": "n1"}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    middle = begin + (end - begin) / 2
    first, last = (begin, middle) if restart == 0 else (middle, end)
    at = first - first % SCRAPE_SECONDS + SCRAPE_SECONDS
    while at <= last:
        value = item.figure((at - begin) / (end - begin))
        if value is not None:
            yield f"{item.metric}{{{text}}} {value} {at:.0f}"
        at += SCRAPE_SECONDS
