"""A real OpenTelemetry Collector on this machine with a configuration of ours, and what it would send."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One data point. `kind`: gauge, sum or histogram; `resource`: what it is about."""

    name: str
    kind: str
    unit: str
    resource: dict[str, Any]
    attributes: dict[str, Any]
    value: float


@contextmanager
def running(program: Path, configuration: Path, kubeconfig: Path, directory: Path) -> Iterator[Path]:
    """The configuration as it is, but for three things: the API server is reached by `kubeconfig`, it is scraped every
    two seconds, and what would be sent is written. Yields the file, of one JSON object for each export.
    """
    body: Object = yaml.safe_load(configuration.read_text())
    sent, log = directory / "sent.json", directory / "collector.log"
    (scrape,) = body["receivers"]["prometheus"]["config"]["scrape_configs"]
    scrape["scrape_interval"] = "2s"
    (discovery,) = scrape["kubernetes_sd_configs"]
    discovery["kubeconfig_file"] = str(kubeconfig)
    body["exporters"] = {"file": {"path": str(sent)}}
    body["service"]["pipelines"]["metrics"]["exporters"] = ["file"]
    body["service"]["telemetry"] = {"metrics": {"level": "none"}}
    changed = directory / "collector.yaml"
    changed.write_text(yaml.safe_dump(body))
    with log.open("wb") as output:
        process = subprocess.Popen([program, f"--config=file:{changed}"], stdout=output, stderr=output)
    try:
        yield sent
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.kill()
        process.wait(30)


def points(sent: Path) -> list[Point]:
    """The points of all that was exported so far, in order."""
    if not sent.exists():
        return []
    whole = [line for line in sent.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [point for line in whole for of in json.loads(line)["resourceMetrics"] for point in _points(of)]


def _points(of: Object) -> Iterator[Point]:
    resource = _attributes(of["resource"])
    for scope in of["scopeMetrics"]:
        for metric in scope["metrics"]:
            (kind,) = metric.keys() & {"gauge", "sum", "histogram"}
            for point in metric[kind]["dataPoints"]:
                value = point.get("asDouble", point.get("sum", 0.0))
                unit = metric.get("unit", "")
                yield Point(metric["name"], kind, unit, resource, _attributes(point), float(value))


def _attributes(of: Object) -> Object:
    """Each of ours is a string."""
    return {attribute["key"]: attribute["value"].get("stringValue") for attribute in of.get("attributes", [])}
