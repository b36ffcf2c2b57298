"""What each panel of a Grafana dashboard shows of a time: its queries, run as Grafana would run them. Asks through a
function, so it does no I/O of its own.

Grafana replaces `$__rate_interval` by four scrape intervals of its data source, or by the step and one more where that
is longer, and "All" of a variable by all its values (grafana.com/docs, "Prometheus query editor", "Variables").
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.prometheus.server import Series

POINTS_MOST = 600
"""The most points of a line: about the pixels of a panel of a third of the screen."""
DEFAULT_SCRAPE_SECONDS = 15.0
"""What a Grafana data source assumes unless it is told another scrape interval."""

Ask = Callable[[str, float, float, float], Sequence[Series]]
"""(query, start, end, step) in seconds."""


@dataclass(frozen=True)
class Window:
    """The time that a dashboard shows, in Unix seconds, and the scrape interval that its data source was told."""

    start: float
    end: float
    scrape: float = DEFAULT_SCRAPE_SECONDS

    @property
    def step(self) -> float:
        return max(self.scrape, math.ceil((self.end - self.start) / POINTS_MOST))

    @property
    def rate_interval(self) -> float:
        return max(self.step + self.scrape, 4 * self.scrape)

    def of(self, target: Mapping[str, Any]) -> "Window":
        """The window with the query's own minimum step, which Grafana takes for the scrape interval."""
        interval = target.get("interval")
        return replace(self, scrape=seconds(interval)) if interval else self


@dataclass(frozen=True)
class Line:
    """One line of a panel. `legend`: as Grafana writes it. `points`: those that are numbers."""

    query: str
    legend: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Shown:
    """A panel with all its lines, and the queries of it that gave none."""

    title: str
    unit: str
    kind: str
    lines: tuple[Line, ...]
    empty: tuple[str, ...]

    @property
    def collisions(self) -> tuple[str, ...]:
        """Legends that several lines of the panel have: nobody could tell those apart."""
        legends = [line.legend for line in self.lines]
        return tuple(sorted({legend for legend in legends if legends.count(legend) > 1}))

    @property
    def bounds(self) -> tuple[float, float] | None:
        values = [value for line in self.lines for _, value in line.points]
        return (min(values), max(values)) if values else None


def show(dashboard: Mapping[str, Any], window: Window, variables: Mapping[str, Sequence[str]], ask: Ask) -> list[Shown]:
    """Every panel but the rows, in the dashboard's order. `variables`: the values that "All" stands for."""
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    return [_panel(panel, window, variables, ask) for panel in panels]


def _panel(panel: Mapping[str, Any], window: Window, variables: Mapping[str, Sequence[str]], ask: Ask) -> Shown:
    lines: list[Line] = []
    empty: list[str] = []
    for target in panel["targets"]:
        own = window.of(target)
        answer = ask(expanded(target["expr"], own, variables), own.start, own.end, own.step)
        drawn = [_line(target, series) for series in answer]
        drawn = [line for line in drawn if line.points]
        lines += drawn
        if not drawn:
            empty.append(target["expr"])
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    return Shown(panel["title"], unit, panel["type"], tuple(lines), tuple(empty))


def expanded(query: str, window: Window, variables: Mapping[str, Sequence[str]]) -> str:
    """The query that Prometheus gets. Raises KeyError for a variable that the dashboard lacks."""
    known = {name: f"({'|'.join(re.escape(value) for value in values)})" for name, values in variables.items()}
    known["__rate_interval"] = f"{window.rate_interval:g}s"
    known["__interval"] = f"{window.step:g}s"
    return re.sub(r"\$(\w+)", lambda match: known[match[1]], query)


def seconds(duration: str) -> float:
    """Seconds of a duration as Prometheus writes it (30s, 1m, 2h). Raises ValueError for another form."""
    match = re.fullmatch(r"(\d+)([smh])", duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration such as 30s, 1m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _line(target: Mapping[str, Any], series: Series) -> Line:
    points = tuple((at, value) for at, value in series.points if math.isfinite(value))
    return Line(target["expr"], legend(target.get("legendFormat", ""), series.labels), points)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """A label that the series lacks becomes nothing. Without a template: all labels, as Grafana's "auto"."""
    if not template:
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return re.sub(r"\{\{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), template)


def table(panels: Sequence[Shown]) -> list[str]:
    """One line for each panel: lines that it draws, its smallest and largest value, and what is wrong with it."""
    rows = []
    for panel in panels:
        low, high = panel.bounds or (math.nan, math.nan)
        wrong = [f"EMPTY: {query}" for query in panel.empty]
        wrong += [f"SAME LEGEND: {text!r}" for text in panel.collisions]
        rows.append(
            f"{panel.title:48} {len(panel.lines):4} lines  {low:>12.5g} … {high:<12.5g} {panel.unit:12} {wrong or ''}"
        )
    return rows
