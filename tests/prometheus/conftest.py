"""A real Prometheus, built once, that holds the week before now and scrapes nothing."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import cache_root
from localcluster.programs.build import PROMETHEUS, build_component
from tests.prometheus.recorded import openmetrics
from tests.prometheus.server import running
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
    with running(programs / "prometheus", folder) as server:
        yield server.address
