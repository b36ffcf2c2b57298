"""A simulated driver of its own, and a temporary directory for the daemon of a benchmark."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.simulation.conftest import SECONDS, start_driver


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the driver of one simulated GPU; daemons go into `tmp` beside it."""
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        directory = Path(base)
        directory.chmod(0o755)
        (directory / "tmp").mkdir()
        monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", base)
        monkeypatch.setenv("TMPDIR", f"{base}/tmp")
        monkeypatch.setattr(tempfile, "tempdir", f"{base}/tmp")
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
            monkeypatch.delenv(name, raising=False)
        process = start_driver(directory, gpus=1)
        yield directory
        process.terminate()
        process.wait(SECONDS)
