"""A simulated driver for each test that uses the fixture `driver`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare import simulation

SECONDS = 30.0


def start_driver(directory: Path, gpus: int = 2) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "gpushare.cli.main", "simulated-driver", "--directory", str(directory)]
    process = subprocess.Popen(
        [*argv, "--node", "unit", "--gpus", str(gpus), "--server-init-ms", "0", "--client-init-ms", "0"],
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + SECONDS
    while not (directory / f"dev/nvidia{gpus - 1}").exists():
        assert process.poll() is None, "the driver ended"
        assert time.monotonic() < end, "the driver did not start"
        time.sleep(0.02)
    return process


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """(directory, process) of the driver that this process' environment names."""
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        directory = Path(base)
        directory.chmod(0o755)
        monkeypatch.setenv("GPUSHARE_SIMULATION_DIR", base)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", f"{base}/pipe")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        process = start_driver(directory)
        yield directory, process
        process.terminate()
        process.wait(SECONDS)


@pytest.fixture
def start_again(driver: tuple[Path, subprocess.Popen[bytes]]) -> Iterator[Callable[[], None]]:
    """Ends the driver and starts another one in the same directory."""
    second: list[subprocess.Popen[bytes]] = []

    def restart() -> None:
        directory, process = driver
        process.terminate()
        process.wait(SECONDS)
        second.append(start_driver(directory))

    yield restart
    for process in second:
        process.terminate()
        process.wait(SECONDS)


@pytest.fixture
def daemon(driver: tuple[Path, subprocess.Popen[bytes]]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the control daemon of the driver's first GPU."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        control = simulation.bin_dir() / "nvidia-cuda-mps-control"
        started.append(subprocess.Popen([control, "-f", *options], stderr=subprocess.DEVNULL, env=dict(os.environ)))
        end = time.monotonic() + SECONDS
        while subprocess.run([control], input=b"", stdout=subprocess.DEVNULL, check=False).returncode:
            assert time.monotonic() < end, "the daemon did not start"
            time.sleep(0.02)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(SECONDS)
