"""Builds NVIDIA's device plugin from a checkout of its sources, and packs what a machine without network needs of it.

The checkout stays where it is; nothing of it enters this repository. Its vendor tree has all modules, so nothing is
downloaded.
"""

import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import LocalClusterError
from tests.gpu.stack.payload import compress

PROGRAMS = ("nvidia-device-plugin", "mps-control-daemon", "config-manager")
CHART = "deployments/helm/nvidia-device-plugin"
BUILD_SECONDS = 900
FOLDER = "peer"
PACKED = f"{FOLDER}.tar.xz"
"""As `compress` names it."""
ORIGIN = "origin.json"


@dataclass(frozen=True)
class Origin:
    """Where the programs come from: what the checkout says of itself, and the compiler."""

    repository: str
    version: str
    commit: str
    compiler: str


def build(source: Path, out: Path) -> Path:
    """Returns the packed file. Raises LocalClusterError with the compiler's words if it does not build."""
    if not (source / CHART / "Chart.yaml").exists():
        raise LocalClusterError(f"{source} is no checkout of NVIDIA's k8s-device-plugin: {CHART} is missing")
    folder = out.resolve() / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    packages = [f"./cmd/{name}" for name in PROGRAMS]
    _run(
        [
            "go",
            "build",
            "-mod=vendor",
            "-buildvcs=false",
            "-trimpath",
            "-ldflags",
            "-s -w",
            "-o",
            str(folder / "bin"),
            *packages,
        ],
        source,
    )
    shutil.copytree(source / CHART, folder / "chart")
    (folder / ORIGIN).write_text(json.dumps(asdict(_origin(source)), indent=2) + "\n")
    return compress(folder)


def _origin(source: Path) -> Origin:
    chart = (source / CHART / "Chart.yaml").read_text()
    version = next(line.split('"')[1] for line in chart.splitlines() if line.startswith("appVersion:"))
    commit = _run(["git", "rev-parse", "HEAD"], source).strip()
    return Origin("NVIDIA/k8s-device-plugin", version, commit, _run(["go", "version"], source).strip())


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        raise LocalClusterError(f"{' '.join(command[:3])} … failed in {directory}: {done.stderr.strip()[-800:]}")
    return done.stdout
