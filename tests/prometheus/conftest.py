"""A real Prometheus, built once, that holds the week before now and scrapes nothing."""

import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import cache_root
from localcluster.programs.build import PROMETHEUS, build_component
from tests.prometheus.recorded import openmetrics
from tests.prometheus.week import week

WEEK = 7 * 86400
SECONDS = 300


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that holds the week before now."""
    programs, folder = build_component(PROMETHEUS, cache_root()), tmp_path_factory.mktemp("prometheus")
    end = time.time()
    history = folder / "history.om"
    with history.open("w") as file:
        file.writelines(f"{line}\n" for line in openmetrics(week(), end - WEEK, end))
    load: list[str | Path] = ["tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=24h", "--quiet"]
    made = subprocess.run(
        [programs / "promtool", *load, history, folder / "data"], capture_output=True, text=True, timeout=SECONDS
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (folder / "prometheus.yaml").write_text("global: {}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    argv: list[str | Path] = [
        programs / "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=90d",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        await_ready(server, f"http://{address}/-/ready", folder / "log")
        yield f"http://{address}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=SECONDS)


def await_ready(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own Prometheus
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"Prometheus is not ready: {log.read_text()[-2000:]}")
