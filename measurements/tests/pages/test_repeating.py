"""The commands under "How to repeat it" in kernels.md run as they stand, on the simulated GPU."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import simulation
from localcluster.paths import REPOSITORY
from tests.unit.simulation.conftest import SECONDS, start_driver

PAGE = (REPOSITORY / "measurements" / "pages" / "kernels.md").read_text()
BLOCK = re.search(r"^## How to repeat it\n.*?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
LINES = BLOCK[1].splitlines() if BLOCK else []
SHORTER = {
    "workload.bench": ["--quick", "--parts", "depth-1", "overlap-half-mps", "mix-slices"],
    "workload.scenarios": ["graph"],
}
"""Further arguments, by script: its whole run takes minutes."""
ONLY_ON_HARDWARE = {"mps.capped_pair", "mps.departures", "workload.ddp", "mps.profilers", "mps.attach.starts"}
BOUND = 300.0


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """That of a machine with one simulated GPU, which nobody uses."""
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        directory = Path(base)
        directory.chmod(0o755)
        (directory / "tmp").mkdir()
        process = start_driver(directory, gpus=1)
        # A Python in which nothing of ours is installed; its packages lie in a folder that PYTHONPATH names.
        (directory / "bin").mkdir()
        (directory / "bin/python3").symlink_to(Path(sys.executable).resolve())
        packages = os.pathsep.join(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))
        path = f"{simulation.bin_dir()}{os.pathsep}{directory}/bin{os.pathsep}{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        yield {**own, "GPUSHARE_SIMULATION_DIR": base, "TMPDIR": f"{base}/tmp", "PATH": path, "PYTHONPATH": packages}
        process.terminate()
        process.wait(SECONDS)


def script(line: str) -> str:
    """The name of the script that a line runs, below measurements.gpu."""
    match = re.match(r"python3 -m measurements\.gpu\.(\S+)", line)
    return match[1] if match else ""


def test_the_commands_run_one_after_the_other(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("operator", "workload", "tests", "measurements"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    lines = [line.partition(" #")[0].rstrip() for line in LINES]
    assert {script(line) for line in lines} >= {*SHORTER, *ONLY_ON_HARDWARE}
    run = [
        " ".join([line, *map(shlex.quote, SHORTER.get(script(line), []))])
        for line in lines
        if script(line) not in ONLY_ON_HARDWARE
    ]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(run)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "they say nothing about speed" in page


@pytest.mark.parametrize("name", sorted(ONLY_ON_HARDWARE))
def test_a_script_that_needs_hardware_is_there(name: str) -> None:
    assert callable(importlib.import_module(f"measurements.gpu.{name}").main)
