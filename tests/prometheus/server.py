"""A real Prometheus on this machine, which scrapes a cluster as the chart's PodMonitor says, or only answers about a
run that has ended."""

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SECONDS = 60.0
"""The longest that one question may take."""
EVALUATION = "30s"
"""The time between two looks at the alerts: the Prometheus Operator's default."""


class PrometheusError(Exception):
    """Prometheus refuses a query, or does not answer."""


@dataclass(frozen=True)
class Series:
    """One line of a panel: its labels, and (Unix time, value) in order."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Prometheus:
    """Questions to the Prometheus at this address, such as http://127.0.0.1:9090."""

    address: str

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """The query over the time (Unix seconds), one value each `step` seconds. Raises PrometheusError."""
        data = self.ask("query_range", query=query, start=str(start), end=str(end), step=str(step))
        return [
            Series(series["metric"], tuple((float(at), float(v)) for at, v in series["values"]))
            for series in data["result"]
        ]

    def values_of(self, label: str, selector: str, start: float, end: float) -> list[str]:
        """What `label_values(selector, label)` of a Grafana variable gives for that time."""
        query = {"match[]": selector, "start": str(start), "end": str(end)}
        return [str(value) for value in self.ask(f"label/{label}/values", **query)]

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - http, by the caller
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"{query.get('query', path)}: {error.read().decode(errors='replace')}") from error
        except (OSError, ValueError) as error:
            raise PrometheusError(f"{self.address} does not answer: {error}") from error


@contextmanager
def running(
    program: Path,
    directory: Path,
    scrape: list[dict[str, Any]] | None = None,
    rules: dict[str, Any] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Prometheus]:
    """A Prometheus whose series are in `directory`/data; without `scrape` it only answers. Ends it afterwards.

    `host`: the address of this machine that it listens at.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules or {"groups": []}))
    configuration = {
        "global": {"evaluation_interval": EVALUATION},
        "rule_files": ["rules.yaml"],
        "scrape_configs": scrape or [],
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = f"{host}:{_free_port(host)}"
    argv: list[str | Path] = [
        program,
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=365d",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_ready(process, address, directory / "prometheus.log")
        yield Prometheus(f"http://{address}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _await_ready(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise PrometheusError(f"Prometheus is not ready; the end of {log}: {log.read_text()[-2000:]}")
