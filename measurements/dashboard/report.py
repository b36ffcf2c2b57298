"""The result of a run as JSON: panels, alerts, what happened, and what a scrape costs."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from localcluster.paths import REPOSITORY, SOURCES
from measurements.dashboard.alerts import Fired
from measurements.dashboard.panels import Shown
from tests.prometheus.server import Prometheus

COSTS = {
    "samples": 'max(max_over_time(scrape_samples_scraped{{job="{job}"}}[{window}])) by (container)',
    "seconds99": 'max by (container) (quantile_over_time(0.99, scrape_duration_seconds{{job="{job}"}}[{window}]))',
    "failedScrapes": 'sum by (container) (count_over_time((up{{job="{job}"}} == 0)[{window}:30s]))',
}


def costs(prometheus: Prometheus, job: str, start: float, end: float) -> dict[str, dict[str, float]]:
    """Figures of the scrapes, by figure and container: samples of a scrape at most, 99th percentile of its seconds,
    scrapes that failed."""
    figures = {}
    for name, query in COSTS.items():
        asked = query.format(job=job, window=f"{int(end - start)}s")
        answer = prometheus.ask("query", query=asked, time=str(end))["result"]
        figures[name] = {sample["metric"].get("container", "all"): float(sample["value"][1]) for sample in answer}
    return figures


def panel(shown: Shown) -> dict[str, Any]:
    low, high = shown.bounds or (None, None)
    asked = list(dict.fromkeys([line.query for line in shown.lines] + list(shown.empty)))
    return {
        "panel": shown.title,
        "unit": shown.unit,
        "lines": len(shown.lines),
        "points": sum(len(line.points) for line in shown.lines),
        "smallest": low,
        "largest": high,
        "linesByQuery": {query: sum(line.query == query for line in shown.lines) for query in asked},
        "sameLegend": list(shown.collisions),
    }


def alert(fired: Fired, start: float) -> dict[str, Any]:
    """Times in seconds since `start`."""
    return {
        "alert": fired.alert,
        "from": round(fired.start - start),
        "to": round(fired.end - start),
        "labels": {
            key: fired.labels[key] for key in sorted(fired.labels) if key in ("share", "node", "pod", "severity")
        },
        "because": list(fired.because),
    }


def commit() -> str:
    argv = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, timeout=30).stdout.strip()


def prometheus_version() -> str:
    """Prometheus' version from that of its Go module: v0.313.5 is Prometheus 3.13.5."""
    return str(re.findall(r"prometheus/prometheus (v\S+)", (SOURCES / "prometheus" / "go.mod").read_text())[0])


def environment(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commit": record["commit"],
        "seed": record["seed"],
        "minutes": record["minutes"],
        "prometheus": prometheus_version(),
        "cores": os.cpu_count(),
        "highestLoad": record["load"],
        "kernel": platform.release(),
        "cluster": "one node, 2 simulated GPUs, one replica of the operator, two of the webhook",
        **({"remark": record["remark"]} if record["remark"] else {}),
    }


def report(
    record: Mapping[str, Any], panels: Sequence[Shown], fired: Sequence[Fired], cost: Mapping[str, Any]
) -> dict[str, Any]:
    start = record["start"]
    return {
        "what": "python -m measurements.dashboard; see its documentation",
        "environment": environment(record),
        "panels": [panel(shown) for shown in panels],
        "empty": [query for shown in panels for query in shown.empty],
        "sameLegend": sum(len(shown.collisions) for shown in panels),
        "alerts": [alert(firing, start) for firing in fired],
        "falseAlerts": sorted({firing.alert for firing in fired if firing.false}),
        "happenings": [
            {"at": round(happening["at"] - start), "what": happening["what"], "detail": happening["detail"]}
            for happening in record["happenings"]
        ],
        "scrapes": cost,
    }
